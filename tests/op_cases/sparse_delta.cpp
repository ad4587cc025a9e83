// Sparse delta memory: all kernels of a layer's two passes. The layout of what they hand to each other differs between
// devices, so they run as one.
#include "tests/op_cases/sparse_delta.h"

using namespace hebb_test;

namespace {

// fp32: sums over up to 30 tokens of products of up to 100 terms, some of which cancel. bf16 rows: of their roundings,
// 2^-9 at each write, those of all tokens that wrote a slot add up; for decays in differences of what they were taken
// from.
void check_both(const SparseDelta& c, bool bf16_rows) {
  check(bf16_rows ? DType::bf16 : DType::f32, [&](Machine& m) {
    m.is_bf16() ? sparse_delta_passes(m, c, 1e-2, 5e-2) : sparse_delta_passes(m, c, 5e-6, 5e-6);
  });
}

SparseDelta with(SparseDelta c, bool by_key, bool has_memory) {
  c.by_key = c.accumulate = by_key;
  c.has_memory = has_memory;
  if (!by_key && c.g.size() > 3) { c.g[3] = -200; }  // underflows in fp32
  return c;
}

TEST_CASE("sparse delta memories and their gradients", "[fast]") {
  const bool by_key = GENERATE(false, true), has_memory = GENERATE(false, true);
  CAPTURE(by_key, has_memory);
  for (const int64_t dim : {71, 72}) {  // elements; packs
    const SparseDelta c({.batch = 2, .length = 13, .heads = 2, .slots = 25, .dim = dim, .writes = 7, .reads = 9},
                        {1, 8, 4});
    check_both(with(c, by_key, has_memory), dim == 72);
  }
}

TEST_CASE("sparse delta memories of few and of many slots a token", "[fast]") {
  const SparseDelta one({.batch = 1, .length = 6, .heads = 1, .slots = 4, .dim = 3, .writes = 1, .reads = 4}, {2, 4});
  check_both(with(one, false, true), false);
  check_both(with(one, true, true), false);
  const SparseDelta::Sizes many{.batch = 1, .length = 5, .heads = 1, .slots = 81, .dim = 33, .writes = 70, .reads = 3};
  check_both(with(SparseDelta(many), true, true), false);
  SparseDelta::Sizes packed = many;
  packed.dim = 40;
  packed.reads = 68;
  check_both(with(SparseDelta(packed), true, true), true);
  check_both(with(SparseDelta({.batch = 1, .length = 5, .heads = 1, .slots = 4, .dim = 8, .writes = 1, .reads = 2}),
                  false, true),
             true);
}

TEST_CASE("sparse delta memories whose slots are overwritten many times", "[fast]") {
  const bool by_key = GENERATE(false, true), has_memory = GENERATE(false, true), bf16_rows = GENERATE(false, true);
  CAPTURE(by_key, has_memory);
  check_both(with(many_overwrites(4), by_key, has_memory), bf16_rows);
}

TEST_CASE("sparse delta memories whose rows and heads are sorted one after the other", "[fast]") {
  SparseDelta c({.batch = 3, .length = 13, .heads = 2, .slots = 25, .dim = 5, .writes = 7, .reads = 9}, {9, 4});
  c.slots_of_index = int64_t{1} << 30;
  check_both(with(c, false, true), false);
}

TEST_CASE("sparse delta memories that are carried on", "[fast]") {
  const int64_t length = GENERATE(1, 5);
  SparseDelta c({.batch = 3, .length = length, .heads = 2, .slots = 16, .dim = 66, .writes = 3, .reads = 5});
  c.carried = true;
  check_both(with(c, false, true), false);
}

TEST_CASE("sparse delta memories do not race", "[threads]") {
  const SparseDelta c({.batch = 1, .length = 3, .heads = 1, .slots = 9, .dim = 65, .writes = 6, .reads = 5}, {1, 2});
  check_both(with(c, false, true), false);
  const SparseDelta packed({.batch = 1, .length = 3, .heads = 1, .slots = 16, .dim = 72, .writes = 12, .reads = 9},
                           {1, 2});
  check_both(with(packed, false, true), true);
}

}  // namespace
