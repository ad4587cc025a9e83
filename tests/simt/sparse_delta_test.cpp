// What the CUDA kernels of sparse delta memories hand to each other.
#include "tests/op_cases/sparse_delta.h"

#include "support.h"

using namespace hebb_test;

namespace {

TEST_CASE("the backward pass of a sparse delta memory runs over the M of the forward pass, bit for bit", "[fast]") {
  const bool by_key = GENERATE(false, true), has_memory = GENERATE(false, true);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(by_key, has_memory, dtype_name(dtype));
  SparseDelta c = many_overwrites(1);
  c.by_key = by_key;
  c.has_memory = has_memory;
  // A token reads one slot, and the loss is one channel of it: the reading's weight gets the reading as its gradient.
  std::fill(c.q.begin(), c.q.end(), 1.0);
  std::fill(c.d_y.begin(), c.d_y.end(), 0.0);
  const auto channel = [&](size_t head) {
    return head * static_cast<size_t>(c.n.dim) + head * 7 % static_cast<size_t>(c.n.dim);
  };
  for (size_t head = 0; head < c.q.size(); ++head) { c.d_y[channel(head)] = 1; }
  both_ways([&] {
    const std::unique_ptr<Memory> memory = emulated_memory();
    Machine m(*memory, {.activations = dtype, .reals = DType::f64});
    const SparseDeltaResults found = sparse_delta_passes(m, c);
    for (size_t head = 0; head < c.q.size(); ++head) {
      CAPTURE(head);
      CHECK(found.d_q[head] == found.y[channel(head)]);
    }
  });
}

TEST_CASE("codes of slots are those of the drawn example", "[fast]") {
  // kernels/sparse_delta/codes.h
  using List = std::vector<int32_t>;
  constexpr int32_t x = INT32_MIN;
  const auto run = [&](Machine& m, bool backward) {
    const Tensor writes = m.integers({3, 1, 2}, {5, 6, 5, 7, 6, 8}), reads = m.integers({3, 1, 2}, {6, 8, 5, 8, 5, 6}),
                 sequences = m.integers({1, 4}, {0, 3, 0, 0});
    const SparseDeltaUses uses = sparse_delta_uses(m.workspace(), writes, reads, sequences, 1, backward);
    m.run(SparseDeltaIndex{
        .uses = uses, .write_slots = writes, .read_slots = reads, .sequences = sequences, .batch = 1, .slots = 9});
    return uses;
  };
  const auto list = [](const Tensor& t, int64_t count) { return List(t.as<int32_t>(), t.as<int32_t>() + count); };
  const Machine::Setting setting{.activations = DType::f32, .reals = DType::f64};
  const std::unique_ptr<Memory> of_host = host_memory();
  Machine host(*of_host, setting);
  const SparseDeltaUses numbers = run(host, false);
  CHECK(list(numbers.write_codes, 6) == List{~0, ~1, 0, ~3, 1, ~2});
  CHECK(list(numbers.read_codes, 6) == List{1, ~2, 0, ~2, 0, 1});
  CHECK(list(numbers.numbered, 4) == List{5, 6, 8, 7});
  both_ways([&] {
    const std::unique_ptr<Memory> memory = emulated_memory();
    Machine forward(*memory, setting), backward(*memory, setting);
    const SparseDeltaUses codes = run(forward, false), uses = run(backward, true);
    CHECK(list(codes.write_codes, 6) == List{~5, ~6, 5, ~7, 6, ~8});
    CHECK(list(codes.read_codes, 6) == List{6, ~8, 5, ~8, 5, 6});
    CHECK(list(codes.first_use, 12) == List{5, 6, -1, 8, -1, 7, -1, -1, -1, -1, -1, -1});
    CHECK(list(codes.order, 12) == List{0, 4, 6, 10, 1, 2, 8, 11, 5, 3, 7, 9});
    CHECK(list(uses.write_codes, 6) == List{~5, ~6, 5, ~7, 6, ~8});
    CHECK(list(uses.read_codes, 6) == List{x, ~8, x, ~8, 5, x});
    CHECK(list(uses.next_write, 6) == List{5, 6, 5, ~7, ~6, ~8});
    CHECK(list(uses.next_read, 6) == List{x, 8, x, 8, ~5, x});
    CHECK(list(uses.paired_read, 6) == List{-1, 0, 0, -1, 1, -1});
  });
}

}  // namespace
