#include "inspect/bench.h"

#include <set>

#include "layers/layer.h"
#include "tests/test.h"

namespace {

ModelConfig read(const BenchModel& m) { return Fields::read<ModelConfig>(parse_json(m.json, m.name), "model"); }

}  // namespace

TEST_CASE("every layer type is in a benchmark model", "[fast]") {
  std::set<std::string> measured{"gdn", "swiglu"};  // in all of them
  for (const BenchModel& m : bench_layers()) {
    read(m);
    measured.insert(m.name);
  }
  for (const LayerType& type : layer_types()) {
    INFO(type.name);
    CHECK(measured.count(type.name) == 1);
  }
}

TEST_CASE("a benchmark that does not fit is refused as a run is", "[fast]") {
  CHECK_THROWS_WITH(measure_model(read(bench_models().back()), {DeviceKind::cpu, DType::f32}, {1 << 20, 16, 0, 1}),
                    Contains("memory plan: the run does not fit") && Contains("train.micro_batch_size"));
}

TEST_CASE("a benchmark measures whole training steps", "[fast]") {
  const ModelSpeed s = measure_model(read(bench_models().back()), {DeviceKind::cpu, DType::f32}, {1, 16, 0, 1});
  CHECK(s.rows * s.length == 16);
  CHECK(s.best_ms > 0);
  CHECK(s.best_ms >= s.forward_ms);
  CHECK(s.flops_per_token > 1e6);
}
