#include "kernels/slot_select/slot_select.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/random.h"
#include "kernels/slot_select/slot_hash_set.h"
#include "tests/op_cases/machine.h"

using namespace hebb_test;

namespace {

/// The k best of all n * n sums, equal ones by slot number; ascending.
std::vector<int32_t> exhaustive(const std::vector<double>& s1, const std::vector<double>& s2, int64_t k) {
  const size_t n = s1.size();
  std::vector<std::pair<double, int32_t>> all;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) { all.push_back({-(s1[i] + s2[j]), static_cast<int32_t>(i * n + j)}); }
  }
  std::sort(all.begin(), all.end());
  std::vector<int32_t> slots;
  for (int64_t i = 0; i < k; ++i) { slots.push_back(all[static_cast<size_t>(i)].second); }
  std::sort(slots.begin(), slots.end());
  return slots;
}

template <class S>
std::vector<int32_t> select(const std::vector<double>& s1, const std::vector<double>& s2, int64_t k) {
  std::vector<S> scores(s1.begin(), s1.end());
  scores.insert(scores.end(), s2.begin(), s2.end());
  std::vector<int32_t> slots(static_cast<size_t>(k));
  cpu::SlotSet<S> set;
  set.select(scores.data(), 1, static_cast<int64_t>(s1.size()), k, slots.data());
  return slots;
}

struct Weighted {
  Values weights, d_scores;
};

/// Weights of `slots` among scores [2, 3], and the gradient at the scores.
Weighted weigh(DType dtype, const Values& scores, const std::vector<int64_t>& slots, const Values& d_weights,
               SlotActivation activation, double scale) {
  const std::unique_ptr<Memory> memory = host_memory();
  Machine m(*memory, {.activations = DType::f32, .reals = dtype});
  const Shape of_scores{1, 1, 2, 3}, of_slots{1, 1, static_cast<int64_t>(slots.size())};
  const Tensor chosen = m.integers(of_slots, slots), all = m.values(of_scores, scores), weights = m.output(of_slots),
               d_scores = m.output(of_scores);
  m.run(SlotWeights{.weights = weights, .slots = chosen, .scores = all, .activation = activation, .scale = scale});
  m.run(SlotWeightsBackward{.d_scores = d_scores,
                            .d_weights = m.values(of_slots, d_weights),
                            .weights = weights,
                            .slots = chosen,
                            .scores = all,
                            .activation = activation,
                            .scale = scale,
                            .accumulate = false});
  return {m.read(weights), m.read(d_scores)};
}

}  // namespace

TEST_CASE("slots are those of an exhaustive search, ties to the lower slot, in ascending order", "[fast]") {
  Rng rng(4, "selection");
  for (const int64_t n : {1, 2, 3, 7, 12, 19, 33}) {
    const std::set<int64_t> counts{1, 2, 3, n / 2, n - 1, n, n + 1, 2 * n, n * n / 2, n * n};
    for (const int64_t k : counts) {
      for (const uint32_t levels : {1u, 2u, 4u, 1000u}) {  // few levels: many ties; sums are exact
        if (k < 1 || k > n * n) { continue; }
        std::vector<double> s1, s2;
        for (int64_t i = 0; i < n; ++i) {
          s1.push_back(static_cast<double>(rng.below(levels)) - levels / 2);
          s2.push_back(static_cast<double>(rng.below(levels)) - levels / 2);
        }
        INFO("n " << n << ", k " << k << ", levels " << levels);
        const std::vector<int32_t> expected = exhaustive(s1, s2, k);
        CHECK(select<float>(s1, s2, k) == expected);
        CHECK(select<double>(s1, s2, k) == expected);
      }
    }
  }
}

TEST_CASE("slots of several heads are selected together", "[fast]") {
  Rng rng(6, "selection");
  const int64_t n = GENERATE(5, 8, 19), k = 9, count = cpu::slot_select::kGroup;
  std::vector<float> scores(static_cast<size_t>(count * 2 * n));
  for (float& score : scores) { score = static_cast<float>(rng.below(1000)); }
  std::vector<int32_t> slots(static_cast<size_t>(count * k));
  cpu::SlotSet<float>().select(scores.data(), count, n, k, slots.data());
  for (int64_t i = 0; i < count; ++i) {
    const auto first = scores.begin() + i * 2 * n;
    INFO("head " << i << ", n " << n);
    CHECK(std::vector<int32_t>(slots.begin() + i * k, slots.begin() + (i + 1) * k) ==
          exhaustive({first, first + n}, {first + n, first + 2 * n}, k));
  }
}

TEST_CASE("zeros of both signs tie in the selection of slots", "[fast]") {
  CHECK(select<float>({-0.0, 0.0, 0.0}, {0.0, -0.0, -1.0}, 2) == std::vector<int32_t>{0, 1});
  CHECK(select<double>({0.0, -0.0, 0.0}, {-1.0, -0.0, 0.0}, 3) == std::vector<int32_t>{1, 2, 4});
}

TEST_CASE("scores without an order give distinct slots inside the table", "[fast]") {
  Rng rng(5, "selection");
  const double odd[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0, 1.0, 3e38};
  for (int round = 0; round < 300; ++round) {
    const int64_t n = 2 + rng.below(9), k = 1 + rng.below(static_cast<uint32_t>(n * n));
    std::vector<double> s1, s2;
    for (int64_t i = 0; i < n; ++i) {
      s1.push_back(odd[rng.below(7)]);
      s2.push_back(odd[rng.below(7)]);
    }
    for (const std::vector<int32_t>& slots : {select<float>(s1, s2, k), select<double>(s1, s2, k)}) {
      CHECK(std::adjacent_find(slots.begin(), slots.end(), std::greater_equal<>()) == slots.end());
      CHECK(slots.front() >= 0);
      CHECK(slots.back() < n * n);
    }
  }
}

TEST_CASE("weights of slots whose scores are all zero have a finite gradient", "[fast]") {
  const Weighted found = weigh(DType::f64, Values(6), {1, 5}, {1, 1}, SlotActivation::l2, 1);
  CHECK(found.weights[0] == 0);
  for (const double d : found.d_scores) { CHECK(std::isfinite(d)); }
}

TEST_CASE("where one slot has all of the weight, softmax passes a gradient of exactly 0", "[fast]") {
  // A rounding residue instead would become full steps of AdamW.
  const double scale = GENERATE(0.3, 1.0, 7.7);
  const size_t count = GENERATE(1, 2);
  std::vector<int64_t> slots{4, 8};  // (1, 1), which wins by 899, and (2, 2)
  Values d_weights{0.3, -1.7};
  slots.resize(count);
  d_weights.resize(count);
  const Values scores{0, 900, 0.1, 0.3, 0, 0.7};
  const Weighted found = weigh(DType::f32, scores, slots, d_weights, SlotActivation::softmax, scale);
  CHECK(found.d_scores == Values(6));
}
