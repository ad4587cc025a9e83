#include "inspect/bench.h"

#include <algorithm>
#include <set>

#include "layers/layer.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/train/process.h"

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

TEST_CASE("a profile has the time of every operation of a step", "[fast]") {
  const StepProfile p = profile_model(read(bench_models().back()), {DeviceKind::cpu, DType::f32}, {1, 16, 0, 2});
  double sum = p.rest_ms;
  std::set<std::string> names;
  for (const OperationSpeed& o : p.operations) {
    INFO(o.name);
    names.insert(o.name);
    sum += o.ms;
    CHECK(o.ms > 0);
    CHECK(o.launches > 0);
    CHECK(o.bytes > 0);
    CHECK((o.flops > 0) == (o.name.rfind("product ", 0) == 0));
  }
  CHECK(p.rest_ms >= 0);
  CHECK_THAT(p.step_ms, Catch::Matchers::WithinRel(sum));
  CHECK(std::is_sorted(p.operations.begin(), p.operations.end(),
                       [](const auto& a, const auto& b) { return a.ms > b.ms; }));
  CHECK(names.count("GatedDeltaBackward") == 1);
  const auto head = std::find_if(p.operations.begin(), p.operations.end(),
                                 [](const auto& o) { return o.name == "product NT 16 x 4096 x 256"; });
  REQUIRE(head != p.operations.end());
  CHECK(head->flops == 2.0 * 16 * 4096 * 256);
  CHECK(head->bytes == 4.0 * (16 * 4096 + 16 * 256 + 4096 * 256));
}

FOLDER_TEST("hebb bench --profile prints the operations of a step", "[fast]") {
  const std::vector<std::string> words = {"bench", "gdn",     "--profile", "--rows",   "1", "--length",
                                          "16",    "--steps", "1",         "--warmup", "0"};
  const Result table = run_hebb(words, folder / "table");
  REQUIRE(table.code == 0);
  CHECK_THAT(table.out, Contains("of step") && Contains("product NT") && Contains("between operations"));
  std::vector<std::string> json_words = words;
  json_words.push_back("--json");
  const Json profile =
      parse_json(run_hebb(json_words, folder / "json").out, "bench").at("models").items()[0].at("profile");
  CHECK(profile.at("operations").items().size() > 20);
}
