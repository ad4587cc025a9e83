// Whole training runs in fp64 against an independent reference (configuration, initial weights, data,
// losses and final weights of which lie in tests/golden).
#include <cmath>

#include "tests/paths.h"
#include "tests/train/run_fixture.h"

namespace {

/// Validation losses and the tokens they are means of, in order.
void check_validation(const fs::path& run, const fs::path& golden) {
  const auto lines = [](const fs::path& folder) {
    std::vector<Json> found;
    for (const std::string& text : metrics_of(folder)) {
      if (Json line = parse_json(text, "metrics.jsonl"); line.find("val") != nullptr) {
        found.push_back(std::move(line));
      }
    }
    return found;
  };
  const std::vector<Json> found = lines(run), expected = lines(golden);
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("validation after step " << expected[i].at("step").as_int());
    CHECK(found[i].at("step") == expected[i].at("step"));
    CHECK(found[i].at("val") == expected[i].at("val"));
    CHECK(found[i].at("tokens") == expected[i].at("tokens"));
    CHECK(found[i].at("loss").as_double() == Approx(expected[i].at("loss").as_double()).epsilon(1e-9));
  }
}

/// Trains the case and compares losses, lr, gradient norms (1e-9) and final weights (1e-7, relative to the largest
/// entry).
void check_run(const std::string& name) {
  const fs::path golden = fs::path(test_data_path()) / "golden" / name;
  const TempFolder folder;
  RunConfig config = read_run_config((golden / "run.json").string());
  resolve(config);
  const int64_t steps = config.train.steps;
  RunOptions options;
  // Without them the run draws its own.
  if (fs::exists(golden / "init.safetensors")) { options.init_from = golden / "init.safetensors"; }
  Heard heard;
  REQUIRE(run_in(folder / "run", std::move(config), heard, options) == 0);
  for (const char* key : {"loss", "lr", "grad_norm"}) { check_metric(folder / "run", golden, key, 1e-9); }
  check_validation(folder / "run", golden);
  check_weights(folder / "run", steps, golden, [](const std::string& tensor, const auto& found, const auto& expected) {
    REQUIRE(found.size() == expected.size());
    double worst = 0, largest = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      worst = std::max(worst, std::abs(found[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
    INFO(tensor << ": largest difference " << worst << ", largest entry " << largest);
    CHECK(worst <= 1e-7 * largest);
  });
}

}  // namespace

TEST_CASE("training run of gdn with documents, cosine and clipping equals the reference") { check_run("train-13"); }
TEST_CASE("training run of gdn with a learned initial state, wsd and shuffled documents equals the reference") {
  check_run("train-16");
}
TEST_CASE("training run of attention with YaRN, windows, layer norms and relu2 equals the reference") {
  check_run("train-14");
}
TEST_CASE("training run of attention with gates, value residuals and tied embeddings equals the reference") {
  check_run("train-15");
}
TEST_CASE("training run of fwpkm, whose fast weights go from batch to batch, equals the reference") {
  check_run("train-08");
}
TEST_CASE("training runs of fwmlp, pkm, ovq and sdm equal the reference") {
  check_run(GENERATE(as<std::string>(), "train-02", "train-10", "train-11", "train-12"));
}
TEST_CASE("training runs of kvm equal the reference") {
  check_run(GENERATE(as<std::string>(), "train-04", "train-07", "train-09"));
}
TEST_CASE("training runs of vq, whose idle counters go from step to step, equal the reference") {
  check_run(GENERATE(as<std::string>(), "train-01", "train-06"));
}
TEST_CASE("training runs of ham beside sdm and fwpkm, and of kvm beside ovq and pkm, equal the reference") {
  check_run(GENERATE(as<std::string>(), "train-03", "train-05"));
}
TEST_CASE("a run over mixed sources with groups of parameters, an inverse decay and validation equals the reference") {
  check_run("train-options-1");
}
TEST_CASE(
    "a run over headerless files with documents split at a token, random windows and a decay that follows lr equals "
    "the reference") {
  check_run("train-options-2");
}
TEST_CASE("a run over synthetic tasks of several lengths equals the reference") { check_run("train-options-3"); }
TEST_CASE("a run over Megatron files and documents of one token equals the reference") { check_run("train-options-4"); }
TEST_CASE("runs of every layer from initial values of their own equal the reference") {
  check_run(GENERATE(as<std::string>(), "train-options-5", "train-options-6"));
}
