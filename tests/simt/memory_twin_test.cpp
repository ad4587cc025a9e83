// What surrounds and addresses memories, against its CPU twin.
#include "twins.h"

using namespace hebb_test;
using namespace hebb;

namespace {

TEST_CASE("scores and mixtures around a memory equal the CPU's", "[fast]") {
  for (const int64_t width : {37, 40, 264}) {  // elements; packs; more of them than a warp has lanes
    const Shape shape{5, width}, rows{5};
    in_both_types([&](Twins& t) {
      const Twin y = t.output(shape), rstd = t.float_output(rows), x = t.input(shape);
      t.check([&](auto at) { return ZScore{at(y), at(rstd), at(x)}; });
    });
    in_both_types([&](Twins& t) {
      const Twin d_x = t.sum(shape), d_y = t.input(shape), y = t.input(shape), rstd = t.parameter(rows);
      t.check([&](auto at) { return ZScoreBackward{at(d_x), at(d_y), at(y), at(rstd), true}; });
    });
    in_both_types([&](Twins& t) {
      const Twin g = t.output(rows), x = t.input(shape);
      t.check([&](auto at) { return MeanGate{at(g), at(x)}; });
    });
    in_both_types([&](Twins& t) {
      const Twin d_x = t.sum(shape), d_g = t.input(rows), g = t.input(rows);
      t.check([&](auto at) { return MeanGateBackward{at(d_x), at(d_g), at(g), true}; });
    });
    in_both_types([&](Twins& t) {
      const Twin o = t.output(shape), g = t.input(rows), a = t.input(shape), b = t.input(shape);
      t.check([&](auto at) { return GateMix{at(o), at(g), at(a), at(b)}; });
    });
    in_both_types([&](Twins& t) {
      const Twin d_g = t.sum(rows), d_a = t.output(shape), d_b = t.sum(shape), d_o = t.input(shape), g = t.input(rows),
                 a = t.input(shape), b = t.input(shape);
      t.check([&](auto at) {
        return GateMixBackward{at(d_g), at(d_a), at(d_b), at(d_o), at(g), at(a), at(b), true, false, true};
      });
    });
  }
}

/// Scores in which many sums tie: multiples of 1/4.
std::vector<double> tied_scores(int64_t count) {
  std::vector<double> scores;
  Numbers numbers(3);
  for (int64_t i = 0; i < count; ++i) { scores.push_back(std::floor(numbers.next() * 4) / 4); }
  return scores;
}

TEST_CASE("selected slots and their weights equal the CPU's", "[fast]") {
  const int64_t k = GENERATE(1, 5, 30);  // fewer and more than the sub-keys
  const bool ties = GENERATE(false, true);
  CAPTURE(k, ties);
  Twins t;
  const Shape shape{3, 2, 2, 11}, chosen{3, 2, k};
  const Twin scores = ties ? t.values(shape, tied_scores(shape.numel())) : t.input(shape),
             slots = t.integer_output(chosen);
  const auto select = [&](auto at) { return SlotSelect{at(slots), at(scores)}; };
  t.check(select);
  t.prepare(select);
  for (const SlotActivation activation : {SlotActivation::softmax, SlotActivation::l2, SlotActivation::none}) {
    Twins weigh = t;
    const Twin weights = weigh.output(chosen);
    const auto forward = [&](auto at) { return SlotWeights{at(weights), at(slots), at(scores), activation, 1.7}; };
    weigh.check(forward);
    weigh.prepare(forward);
    const Twin d_scores = weigh.sum(shape), d_weights = weigh.input(chosen);
    weigh.check(
        [&](auto at) {
          return SlotWeightsBackward{at(d_scores), at(d_weights), at(weights), at(slots),
                                     at(scores),   activation,    1.7,         true};
        },
        1e-5);
  }
}

TEST_CASE("slots are selected among many sub-keys, also where all scores are equal", "[fast]") {
  const int64_t k = GENERATE(3, 64);
  const Shape shape{3, 1, 2, 37};
  std::vector<double> equal(static_cast<size_t>(shape.numel()), 0.5), nearly = equal;
  nearly[5] = nearly[40] = 0.75;
  for (const auto& values : {equal, nearly, tied_scores(shape.numel())}) {
    Twins t;
    const Twin scores = t.values(shape, values), slots = t.integer_output({3, 1, k});
    t.check([&](auto at) { return SlotSelect{at(slots), at(scores)}; });
  }
}

TEST_CASE("product keys equal the CPU's", "[fast]") {
  constexpr int64_t kTokens = 9, kHeads = 2, kKeys = 11, kHalf = 37, kChosen = 6, kWidth = 45;
  const Shape chosen{kTokens, kHeads, kChosen}, queries{kTokens, kHeads, 2, kHalf}, books{kHeads, 2, kKeys, kHalf};
  const Shape entries{kTokens, kHeads * kChosen}, table{kKeys * kKeys, kWidth};
  std::vector<int64_t> some;
  Numbers numbers(5);
  for (int64_t i = 0; i < chosen.numel(); ++i) { some.push_back(numbers.below(kKeys * kKeys)); }
  in_both_types([&](Twins& t) {
    const Twin q = t.input(queries), keys = t.parameter(books), slots = t.integer_output(chosen),
               sums = t.float_output(chosen);
    const auto select = [&](auto at) { return ProductKeyTopK{at(slots), at(sums), at(q), at(keys)}; };
    t.check(select);
    t.prepare(select);
    Twins score = t, softmax = t;
    const Twin again = score.float_output(chosen), weights = softmax.float_output(chosen);
    score.check([&](auto at) { return ProductKeyScore{at(again), at(slots), at(q), at(keys)}; });
    softmax.check([&](auto at) { return SoftmaxRows{at(weights), at(sums), kChosen}; });
  });
  in_both_types([&](Twins& t) {
    const Twin d_q = t.sum(queries), d_keys = t.float_sum(books), d_weights = t.parameter(chosen),
               weights = t.parameter(chosen), slots = t.integers(chosen, some), q = t.input(queries),
               keys = t.parameter(books);
    t.check([&](auto at) {
      return ProductKeyBackward{.d_q = at(d_q),
                                .d_keys = at(d_keys),
                                .d_weights = at(d_weights),
                                .weights = at(weights),
                                .slots = at(slots),
                                .q = at(q),
                                .keys = at(keys),
                                .accumulate = true};
    });
  });
  in_both_types([&](Twins& t) {
    const Twin r = t.output({kTokens, kWidth}), slots = t.integers(entries, some), w = t.parameter(entries),
               values = t.input(table);
    t.check([&](auto at) { return SlotRead{at(r), at(slots), at(w), at(values)}; });
  });
  in_both_types([&](Twins& t) {
    const Twin d_w = t.float_output(entries), d_values = t.float_sum(table), d_r = t.input({kTokens, kWidth}),
               slots = t.integers(entries, some), w = t.parameter(entries), values = t.input(table);
    t.check([&](auto at) { return SlotReadBackward{at(d_w), at(d_values), at(d_r), at(slots), at(w), at(values)}; });
  });
}

TEST_CASE("product keys of bf16 queries are selected on tensor cores, in runs of tokens", "[fast]") {
  // The emulator's workspace holds 512 tokens with 2 x 2 x 16 entries.
  constexpr int64_t kTokens = 530, kHeads = 2, kKeys = 19, kHalf = 8, kChosen = 16;
  const Shape chosen{kTokens, kHeads, kChosen};
  Twins t(DType::bf16);
  const Twin q = t.input({kTokens, kHeads, 2, kHalf}), keys = t.parameter({kHeads, 2, kKeys, kHalf}),
             slots = t.integer_output(chosen), sums = t.float_output(chosen);
  const int64_t before = simt::runs_of("fast_entries_mma");
  t.check([&](auto at) { return ProductKeyTopK{at(slots), at(sums), at(q), at(keys)}; });
  CHECK(simt::runs_of("fast_entries_mma") == before + 4);
}

TEST_CASE("product keys of bf16 queries with more slots than sub-keys are selected on plain cores", "[fast]") {
  const Shape chosen{3, 1, 7};
  Twins t(DType::bf16);
  const Twin q = t.input({3, 1, 2, 8}), keys = t.parameter({1, 2, 4, 8}), slots = t.integer_output(chosen),
             sums = t.float_output(chosen);
  const int64_t before = simt::runs_of("fast_entries_mma");
  t.check([&](auto at) { return ProductKeyTopK{at(slots), at(sums), at(q), at(keys)}; });
  CHECK(simt::runs_of("fast_entries_mma") == before);
}

}  // namespace
