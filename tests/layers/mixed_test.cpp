// Several memories in one model.
#include "tests/layers/harness.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("models of several memories agree with the golden cases", "[mixed][fast]") {
  check_golden(GENERATE(from_range(golden_cases("mixed-"))));
}

TEST_CASE("a model of several memories gives the same bits under recomputation", "[mixed][fast]") {
  const std::string json = read_file(std::string(HEBB_TEST_DATA) + "/golden/mixed-2/model.json");
  const TraceInput input = random_input(2, 23, 61);
  std::vector<TraceOutput> outputs;
  for (const Recompute recompute : {Recompute::none, Recompute::block, Recompute::mixer, Recompute::ffn}) {
    TestModel m(json, DType::f32, 3, 0.3);
    m.model->set_recompute(recompute);
    outputs.push_back(m.run(input));
  }
  for (const TraceOutput& other : outputs) {
    CHECK(other.logits.values == outputs[0].logits.values);
    REQUIRE(other.grads.size() == outputs[0].grads.size());
    for (const auto& [name, gradient] : other.grads) {
      INFO(name);
      CHECK(gradient.values == outputs[0].grads.at(name).values);
    }
    for (const auto& [name, values] : other.after) {
      INFO(name);
      CHECK(values.values == outputs[0].after.at(name).values);
    }
  }
}
