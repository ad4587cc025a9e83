#include <algorithm>

#include "tests/layers/fast_weights.h"

namespace {

std::string model(const std::string& settings) { return memory_model(R"("type": "fwmlp", )" + settings); }

std::string sizes(int64_t value_dim) {
  return R"("key_dim": 6, "fast_dim": 5, "chunk_size": 4, "lr": 0.5, "value_dim": )" + std::to_string(value_dim);
}

}  // namespace

TEST_CASE("one update of fwmlp equals a gradient step by difference quotients", "[fast]") {
  // value_norm, gate and lookahead off: with w_down zero the prediction is b_down, and its step is
  // known: b_down - lr 2 / (P dv) sum (b_down - target).
  // 70: sums over rows go by blocks of 64 columns.
  const int64_t value_dim = GENERATE(7, 70);
  TestModel m(model(sizes(value_dim) + R"(, "lookahead": 0, "gate": false)"), 3, 0.5);
  m.fill("blocks.0.memory.w_down", 0);
  m.fill("blocks.0.memory.b_down", 0.25);
  const FastWeights start = fast_weights(m);
  const TraceInput input = random_input(1, 3, 19);
  const FastWeights one = (m.run(input, {}), fast_weights(m));
  // The values are z-scores: their features sum to 0.
  const std::vector<double>& bias = one.at("blocks.0.memory.b_down");
  CHECK(std::accumulate(bias.begin(), bias.end(), 0.0) ==
        Approx(0.25 * (static_cast<double>(value_dim) - 0.5 * 2.0)).epsilon(1e-12));
  CHECK(one.at("blocks.0.memory.w_up") == start.at("blocks.0.memory.w_up"));  // no gradient passes w_down = 0
  CHECK(one.at("blocks.0.memory.w_down") != start.at("blocks.0.memory.w_down"));
}

TEST_CASE("clipped steps of fwmlp move by at most lr clip", "[fast]") {
  TestModel m(model(sizes(7) + R"(, "grad_clip": 0.01)"), 3, 0.5);
  const FastWeights start = fast_weights(m);
  m.run(random_input(2, 4, 19), {});
  double largest = 0;
  for (const auto& [name, values] : fast_weights(m)) {
    largest = std::max(largest, compare(values, start.at(name)).worst);
  }
  CHECK(largest == Approx(0.5 * 0.01).epsilon(1e-12));
}

TEST_CASE("fwmlp refuses impossible configurations", "[fast]") {
  CHECK_THROWS_WITH(TestModel(model(R"("chunk_size": 2, "lookahead": 2)")),
                    Contains("lookahead: found 2, expected less than chunk_size (2)"));
  CHECK_THROWS_WITH(TestModel(model(R"("value_dim": 1)")), Contains("expected at least 2 with value_norm"));
}
