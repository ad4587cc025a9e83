// Lookups of product-key memories that are rewritten while they are read, against their CPU twin.
#include "fwpkm_cases.h"

using namespace hebb_test;

namespace {

TEST_CASE("fast lookups equal the CPU's", "[fast]") {
  const FastScore score = GENERATE(FastScore{true, 1e-3}, FastScore{false, 1e-3});
  const Sizes& sizes = GENERATE(0, 1) == 0 ? kWide : kDeep;
  CAPTURE(score.idw, sizes.k);
  in_both_types([&](Twins& t) {
    const Looked looked{t, sizes};
    CHECK(launches([&] { t.check(looked.make(score)); }) == (score.idw ? 2 : 1));
    t.prepare(looked.make(score));
    Looked again = looked;
    again.slots = t.integer_output(sizes.slot_shape());
    again.weights = t.float_sum(sizes.slot_shape());
    t.check(again.select());
  });
}

TEST_CASE("fast lookups of bf16 queries rank on tensor cores", "[fast]") {
  // More than a tile of tokens (64), of keys (256) and of channels (32), and one of a single token and few keys.
  constexpr Sizes kTiles{{2, 40, 1, 34}, 34, 1, 275, 40, 5, 1}, kFew{{1, 2, 1, 1}, 1, 2, 5, 8, 2, 1};
  const FastScore score = GENERATE(FastScore{true, 1e-3}, FastScore{false, 1e-3});
  const Sizes& sizes = GENERATE(0, 1) == 0 ? kTiles : kFew;
  CAPTURE(score.idw, sizes.n);
  Twins t(DType::bf16);
  const Looked looked{t, sizes};
  const int64_t before = simt::runs_of("fast_entries_mma");
  t.check(looked.make(score));
  CHECK(simt::runs_of("fast_entries_mma") == before + 2);
}

TEST_CASE("fast lookups of codebooks with more keys than fit beside a tile rank on plain cores", "[fast]") {
  constexpr Sizes kMost{{1, 2, 0, 2}, 2, 1, 2300, 8, 3, 1};
  Twins t(DType::bf16);
  const Looked looked{t, kMost};
  const int64_t before = simt::runs_of("fast_entries_mma");
  t.check(looked.make({true, 1e-3}));
  CHECK(simt::runs_of("fast_entries_mma") == before);
}

TEST_CASE("fast lookups on tensor cores tell keys apart that differ in their last bits", "[fast]") {
  constexpr Sizes kNear{{1, 3, 0, 3}, 3, 1, 33, 16, 4, 1};
  Twins t(DType::bf16);
  Looked looked{t, kNear};
  std::vector<double> keys, queries(static_cast<size_t>(kNear.tokens() * 2 * kNear.half), 0.0);
  for (size_t i = 0; i < queries.size(); i += 16) {
    queries[i] = 1;  // one channel decides
  }
  for (int64_t i = 0; i < 2 * kNear.n * kNear.half; ++i) {
    const int64_t key = i / kNear.half % kNear.n;
    keys.push_back(i % kNear.half == 0 ? 1 + static_cast<double>(key * 7 % kNear.n) / (1 << 22)
                                       : 0.0);  // 2^-22: four of fp32's last bits
  }
  looked.q = t.activations({kNear.tokens(), 1, 2, kNear.half}, queries);
  looked.keys = t.values({1, 2, kNear.n, kNear.half}, keys);
  t.check(looked.make({false, 1e-3}));
}

TEST_CASE("fast lookups take norms of keys that are given", "[fast]") {
  Twins t;
  Looked looked{t, kWide};
  looked.norms = t.parameter({kWide.heads, 2, kWide.n}, 3);  // of no keys: they decide what is chosen
  CHECK(launches([&] { t.check(looked.make({true, 1e-3}, false, false, true)); }) == 1);
}

TEST_CASE("fast lookups with given entries and slots equal the CPU's", "[fast]") {
  const FastScore score = GENERATE(FastScore{true, 1e-3}, FastScore{false, 1e-3});
  const bool keep_entries = GENERATE(false, true), keep_slots = GENERATE(false, true);
  CAPTURE(score.idw, keep_entries, keep_slots);
  Twins t;
  Looked looked{t, kWide};
  std::vector<int64_t> entries, slots;
  Numbers numbers(4);
  for (int64_t i = 0; i < kWide.book_shape().numel(); ++i) {
    entries.push_back((numbers.below(20) * 3 + i % 3) % 67);  // distinct within a codebook, in no order
  }
  for (int64_t i = 0; i < kWide.slot_shape().numel(); ++i) { slots.push_back(numbers.below(67 * 67)); }
  looked.entries = t.integers(kWide.book_shape(), entries, DType::i32, true);
  looked.slots = t.integers(kWide.slot_shape(), slots, DType::i32, true);
  t.check(looked.make(score, keep_entries, keep_slots));
  t.prepare(looked.make(score, keep_entries, keep_slots));
  Looked again = looked;
  again.weights = t.float_sum(kWide.slot_shape());
  again.slots = t.integers(kWide.slot_shape(), slots, DType::i32, true);
  t.check(again.select(keep_slots));
}

TEST_CASE("fast lookups do not race", "[threads]") {
  Twins t;
  const Looked looked{t, kSmall};
  t.check(looked.make({true, 1e-3}));
}

TEST_CASE("fast lookups on tensor cores do not race", "[threads]") {
  constexpr Sizes kNarrow{{1, 3, 0, 3}, 3, 1, 5, 8, 2, 1};
  Twins t(DType::bf16);
  const Looked looked{t, kNarrow};
  t.check(looked.make({true, 1e-3}));
}

}  // namespace
