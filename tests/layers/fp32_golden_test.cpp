// What fp32 makes of the golden cases, beside what rounding the weights alone makes of them in fp64.
#include "tests/layers/conditioning.h"

using namespace hebb;
using namespace hebb::testing;

TEST_CASE("fp32 is as near to fp64 in all golden cases as it can be", "[fast]") {
  for (const std::string& name : golden_cases()) {
    INFO(name);
    const std::string folder = std::string(HEBB_TEST_DATA) + "/golden/" + name;
    const Conditioning condition(folder);
    TestModel m(read_file(folder + "/model.json"), DType::f32);
    m.load(folder + "/weights.safetensors");
    TraceOptions options = golden_options(folder);
    options.forced = condition.exact.inside;
    for (const auto& [tensor, error] :
         errors(m.run_first(read_trace_input(folder + "/rows.safetensors"), options), condition.exact)) {
      INFO(tensor << ": " << error << " in fp32, " << condition.moved.at(tensor) << " by rounding the weights");
      CHECK(error <= condition.limit(tensor, 1e-5));
    }
  }
}
