#include "eval/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "tests/test.h"

namespace {

std::map<int32_t, int> draw(const std::vector<double>& logits, const Sampling& s, int n = 4000) {
  Rng rng(3, "sample", 0);
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) { ++counts[sample_token(logits, s, rng)]; }
  return counts;
}

/// All ids sorted by probability.
struct Sorted {
  std::vector<int32_t> ids;
  std::vector<double> p, sums;  // by id; of the first ids of the order

  explicit Sorted(const std::vector<double>& logits, double temperature) : ids(logits.size()), p(logits.size()) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    for (size_t i = 0; i < p.size(); ++i) { p[i] = std::exp((logits[i] - largest) / temperature); }
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)]; });
    double sum = 0;
    for (const int32_t id : ids) { sums.push_back(sum += p[static_cast<size_t>(id)]); }
  }

  int32_t token(const Sampling& s, double uniform) const {
    size_t kept = s.top_k > 0 ? std::min(ids.size(), static_cast<size_t>(s.top_k)) : ids.size();
    if (s.top_p < 1) {
      size_t needed = 1;
      while (needed < kept && sums[needed - 1] < s.top_p * sums[kept - 1]) { ++needed; }
      kept = needed;
    }
    std::vector<int32_t> left(ids.begin(), ids.begin() + static_cast<int64_t>(kept));
    std::sort(left.begin(), left.end());
    double total = 0, sum = 0;
    for (const int32_t id : left) { total += p[static_cast<size_t>(id)]; }
    for (const int32_t id : left) {
      sum += p[static_cast<size_t>(id)];
      if (uniform * total < sum) { return id; }
    }
    return left.back();
  }
};

}  // namespace

TEST_CASE("greedy sampling takes the largest logit and the lowest id of equal ones, without a draw", "[fast]") {
  Rng rng(1, "sample", 0), untouched(1, "sample", 0);
  CHECK(sample_token(std::vector<double>{1, 4, 4, 2}, {0.0, 0, 1.0}, rng) == 1);
  CHECK(rng.u32() == untouched.u32());
}

TEST_CASE("sampling follows the softmax at the temperature", "[fast]") {
  const std::vector<double> logits = {std::log(1.0), std::log(2.0), std::log(5.0)};
  const auto counts = draw(logits, {1.0, 0, 1.0});
  // 4000 draws: standard deviation of a share is below 0.008.
  CHECK(counts.at(0) / 4000.0 == Approx(0.125).margin(0.03));
  CHECK(counts.at(2) / 4000.0 == Approx(0.625).margin(0.03));
  CHECK(draw(logits, {0.5, 0, 1.0}).at(2) / 4000.0 == Approx(25.0 / 30.0).margin(0.03));
}

TEST_CASE("top-k and top-p cut the distribution, ties to the lowest id", "[fast]") {
  const std::vector<double> logits = {0, 0, 0, std::log(2.0)};  // 1/5 1/5 1/5 2/5
  CHECK(draw(logits, {1.0, 2, 1.0}).size() == 2);
  CHECK(draw(logits, {1.0, 2, 1.0}).count(0) == 1);
  CHECK(draw(logits, {1.0, 0, 0.4}).size() == 1);
  const auto p = draw(logits, {1.0, 0, 0.59});
  CHECK(p.size() == 2);
  CHECK(p.count(0) == 1);
  // top-p acts on what top-k left: 2/3 of the two kept is more than 0.6 of them.
  CHECK(draw(logits, {1.0, 2, 0.6}).size() == 1);
}

TEST_CASE("one uniform draw is used per token", "[fast]") {
  Rng rng(9, "sample", 4), reference(9, "sample", 4);
  const std::vector<double> logits = {0, 0.5, 1};
  for (int i = 0; i < 5; ++i) {
    sample_token(logits, {1.0, 2, 0.9}, rng);
    reference.uniform();
  }
  CHECK(rng.u32() == reference.u32());
}

TEST_CASE("top-k and top-p give the token that sorting all ids gives, also where ids tie and sums round", "[fast]") {
  Rng rng(17, "logits", 0);
  for (const size_t vocab : {1, 2, 3, 7, 12, 63, 65, 300, 1900}) {
    for (int round = 0; round < 60; ++round) {
      std::vector<double> logits(vocab);
      const double step = round % 3 == 0 ? 0 : round % 3 == 1 ? 0.5 : 3;  // 0: no ties
      for (double& x : logits) {
        x = 2 * rng.normal();
        if (step > 0) { x = std::round(x / step) * step; }
      }
      Sampling s{round % 2 == 0 ? 1.0 : 0.6, 0, 1.0};
      const Sorted sorted(logits, s.temperature);
      if (round % 4 < 3) {  // a share that some number of ids has exactly, or nearly
        const size_t ids = rng.below(static_cast<uint32_t>(vocab));
        s.top_p = std::max(sorted.sums[ids] / sorted.sums.back(), 1e-9);
        if (round % 8 == 1) { s.top_p = std::nextafter(s.top_p, 2.0); }
        if (round % 8 == 2) { s.top_p = std::nextafter(s.top_p, 0.0); }
      }
      if (round % 5 < 2) { s.top_k = 1 + static_cast<int64_t>(rng.below(static_cast<uint32_t>(vocab) + 3)); }
      for (uint64_t draw = 0; draw < 24; ++draw) {
        Rng own(static_cast<uint64_t>(round), "sample", draw), same(static_cast<uint64_t>(round), "sample", draw);
        const int32_t token = sample_token(logits, s, own);
        if (token != sorted.token(s, same.uniform())) { FAIL("vocab " << vocab << ", round " << round); }
      }
    }
  }
}
