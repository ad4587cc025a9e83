// What surrounds and addresses memories: scores, mixtures, slots by two halves, product keys.
#include "kernels/memory_mix/memory_mix.h"
#include "kernels/product_key/scratch.h"
#include "kernels/slot_select/slot_select.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

TEST_CASE("scores and mixtures around a memory", "[fast]") {
  const int64_t width = GENERATE(37, 40, 264);  // elements; packs; more of them than a warp has lanes
  const Shape shape{5, width}, rows{5};
  check([=](Machine& m) {
    m.run(ZScore{m.output(shape), m.float_output(rows), m.input(shape)});
    m.run(ZScoreBackward{.d_x = m.sum(shape),
                         .d_y = m.input(shape),
                         .y = m.input(shape),
                         .rstd = m.parameter(rows),
                         .accumulate = true});
    m.run(MeanGate{m.output(rows), m.input(shape)});
    m.run(MeanGateBackward{.d_x = m.sum(shape), .d_g = m.input(rows), .g = m.input(rows), .accumulate = true});
    m.run(GateMix{.o = m.output(shape), .g = m.input(rows), .a = m.input(shape), .b = m.input(shape)});
    m.run(GateMixBackward{.d_g = m.sum(rows),
                          .d_a = m.output(shape),
                          .d_b = m.sum(shape),
                          .d_o = m.input(shape),
                          .g = m.input(rows),
                          .a = m.input(shape),
                          .b = m.input(shape),
                          .accumulate_g = true,
                          .accumulate_a = false,
                          .accumulate_b = true});
  });
}

/// Scores in which many sums tie: multiples of 1/4.
Values tied_scores(int64_t count) {
  Values scores;
  Numbers numbers(3);
  for (int64_t i = 0; i < count; ++i) { scores.push_back(std::floor(numbers.next() * 4) / 4); }
  return scores;
}

TEST_CASE("selected slots and their weights", "[fast]") {
  const int64_t k = GENERATE(1, 5, 30);  // fewer and more than the sub-keys
  const bool ties = GENERATE(false, true);
  CAPTURE(k, ties);
  const Shape shape{3, 2, 2, 11}, chosen{3, 2, k};
  check(DType::f32, [=](Machine& m) {
    const Tensor scores = ties ? m.values(shape, tied_scores(shape.numel())) : m.input(shape),
                 slots = m.integer_output(chosen);
    m.run(SlotSelect{slots, scores});
    for (const SlotActivation activation : {SlotActivation::softmax, SlotActivation::l2, SlotActivation::none}) {
      const Tensor weights = m.output(chosen);
      m.run(SlotWeights{.weights = weights, .slots = slots, .scores = scores, .activation = activation, .scale = 1.7});
      m.run(SlotWeightsBackward{.d_scores = m.sum(shape),
                                .d_weights = m.input(chosen),
                                .weights = weights,
                                .slots = slots,
                                .scores = scores,
                                .activation = activation,
                                .scale = 1.7,
                                .accumulate = true},
            1e-5);
    }
  });
}

TEST_CASE("slots among many sub-keys, also where all scores are equal", "[fast]") {
  const int64_t k = GENERATE(3, 64);
  const Shape shape{3, 1, 2, 37};
  Values equal(static_cast<size_t>(shape.numel()), 0.5), nearly = equal;
  nearly[5] = nearly[40] = 0.75;
  check(DType::f32, [&](Machine& m) {
    for (const Values& values : {equal, nearly, tied_scores(shape.numel())}) {
      m.run(SlotSelect{m.integer_output({3, 1, k}), m.values(shape, values)});
    }
  });
}

TEST_CASE("slots among more sub-keys than a warp loads at once", "[fast]") {
  const int64_t n = GENERATE(131, 240), k = GENERATE(64, 200);
  check(DType::f32, [=](Machine& m) {
    m.run(SlotSelect{m.integer_output({2, 1, k}), m.input({2, 1, 2, n})});
    m.run(SlotSelect{m.integer_output({2, 1, k}), m.values({2, 1, 2, n}, tied_scores(4 * n))});
  });
}

TEST_CASE("the selection of slots and the gradient of their weights do not race", "[threads]") {
  const Shape shape{2, 1, 2, 37}, chosen{2, 1, 9};
  Values numbers = as_double(random_values<float>(shape.numel(), 1));
  std::fill_n(numbers.begin(), 2 * 37, 0.5);  // of the first token all scores tie
  check(DType::f32, [&](Machine& m) {
    const Tensor slots = m.integer_output(chosen), scores = m.values(shape, numbers), weights = m.parameter(chosen);
    m.run(SlotSelect{slots, scores});
    m.run(SlotWeightsBackward{.d_scores = m.output(shape),
                              .d_weights = weights,
                              .weights = weights,
                              .slots = slots,
                              .scores = scores,
                              .activation = SlotActivation::l2,
                              .scale = 1.0,
                              .accumulate = false},
          1e-5);
  });
}

TEST_CASE("product keys", "[fast]") {
  constexpr int64_t kTokens = 9, kHeads = 2, kKeys = 11, kHalf = 37, kChosen = 6, kWidth = 45;
  const Shape chosen{kTokens, kHeads, kChosen}, queries{kTokens, kHeads, 2, kHalf}, codebooks{kHeads, 2, kKeys, kHalf};
  const Shape entries{kTokens, kHeads * kChosen}, table{kKeys * kKeys, kWidth}, reading{kTokens, kWidth};
  std::vector<int64_t> some;
  Numbers numbers(5);
  for (int64_t i = 0; i < chosen.numel(); ++i) { some.push_back(numbers.below(kKeys * kKeys)); }
  check([&](Machine& m) {
    const Tensor q = m.input(queries), keys = m.parameter(codebooks), slots = m.integer_output(chosen),
                 sums = m.float_output(chosen);
    m.run(ProductKeyTopK{.slots = slots, .sums = sums, .q = q, .keys = keys});
    m.run(ProductKeyScore{.sums = m.float_output(chosen), .slots = slots, .q = q, .keys = keys});
    m.run(SoftmaxRows{m.float_output(chosen), sums, kChosen});
    m.run(ProductKeyBackward{.d_q = m.sum(queries),
                             .d_keys = m.float_sum(codebooks),
                             .d_weights = m.parameter(chosen),
                             .weights = m.parameter(chosen),
                             .slots = m.integers(chosen, some),
                             .q = q,
                             .keys = keys,
                             .accumulate = true});
  });
  check([&](Machine& m) {
    const Tensor slots = m.integers(entries, some), weights = m.parameter(entries), values = m.input(table);
    m.run(SlotRead{.r = m.output(reading), .slots = slots, .weights = weights, .values = values});
    m.run(SlotReadBackward{.d_weights = m.float_output(entries),
                           .d_values = m.float_sum(table),
                           .d_r = m.input(reading),
                           .slots = slots,
                           .weights = weights,
                           .values = values});
  });
}

void check_top_k(int64_t tokens, int64_t heads, int64_t slots, int64_t subkeys, bool on_tensor_cores) {
  const Shape chosen{tokens, heads, slots};
  check(DType::bf16, [&](Machine& m) {
    m.run(ProductKeyTopK{.slots = m.integer_output(chosen),
                         .sums = m.float_output(chosen),
                         .q = m.input({tokens, heads, 2, 8}),
                         .keys = m.parameter({heads, 2, subkeys, 8})},
          kSingle, {"fwpkm_entries_mma", on_tensor_cores});
  });
}

TEST_CASE("product keys of bf16 queries are selected on tensor cores, in runs of tokens", "[fast]") {
  check_top_k(530, 2, 16, 19, true);  // the emulator's workspace holds 512 tokens with 2 x 2 x 16 entries
}

TEST_CASE("product keys of bf16 queries with more slots than sub-keys are selected on plain cores", "[fast]") {
  check_top_k(3, 1, 7, 4, false);
}

}  // namespace
