#include "eval/sampling.h"

#include <cmath>
#include <map>
#include <vector>

#include "tests/test.h"

namespace {

std::map<int32_t, int> draw(const std::vector<double>& logits, const Sampling& s, int n = 4000) {
  Rng rng(3, "sample", 0);
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) { ++counts[sample_token(logits, s, rng)]; }
  return counts;
}

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
