// Thresholds of HAM layers in whole training runs (docs/layers/ham.md, Thresholds).
#include <cmath>

#include "tests/train/run_fixture.h"

namespace {

/// A run of two blocks, each with a HAM layer; `threshold` are the keys of its threshold, `train` more sections.
RunConfig ham_run(const TempFolder& folder, const std::string& threshold, const std::string& changes) {
  return with_model(folder, changes,
                    R"({"vocab_size": 29, "hidden_size": 12, "num_layers": 2, "layers": {
                 "mlp": {"type": "swiglu", "intermediate_size": 10},
                 "ham": {"type": "ham", "conv_size": 2, "rnn": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 5},
                         "kv": {"num_heads": 2, "key_head_dim": 4, "value_head_dim": 5, "rope": {"theta": 100.0}},
                         "threshold": {"lr": 0.02, )" +
                        threshold + R"(}}},
                 "pattern": [{"mixer": "ham", "ffn": "mlp"}]})");
}

std::string threshold_name(int block) { return "blocks." + std::to_string(block) + ".mixer.threshold"; }

/// One statistic over the logged steps.
std::vector<double> statistic(const fs::path& run, const std::string& layer, const std::string& name) {
  std::vector<double> values;
  for (const std::string& line : metrics_of(run)) {
    values.push_back(parse_json(line, "metrics.jsonl").at("layers").at(layer).at(name).as_double());
  }
  return values;
}

}  // namespace

FOLDER_TEST("training steers the share of selected tokens to the target, with equal thresholds", "[slow]") {
  REQUIRE(run_in(folder / "run", ham_run(folder, R"("freeze_steps": 0, "target": 0.3)",
                                         R"({"train": {"steps": 400, "batch_size": 4, "micro_batch_size": 4,
                                             "sequence_length": 32, "precision": "fp32"}})")) == 0);
  const auto late_mean = [&](const std::string& layer) {
    const std::vector<double> all = statistic(folder / "run", layer, "kv_fraction");
    double sum = 0;
    for (size_t i = all.size() - 100; i < all.size(); ++i) { sum += all[i] / 100; }
    return sum;
  };
  CHECK(std::abs(late_mean("ham") - 0.3) <= 0.02);
  CHECK(std::abs(late_mean("blocks.0.mixer") - late_mean("blocks.1.mixer")) > 0.001);
  CHECK(weights_of(folder / "run", 400, threshold_name(0)) == weights_of(folder / "run", 400, threshold_name(1)));
}

FOLDER_TEST("thresholds, bit for bit, and statistics of scores do not depend on the size of micro-batches", "[fast]") {
  std::vector<double> first, least, greatest, deviation;
  for (const int micro : {1, 2, 4}) {
    const fs::path run = folder / ("run" + std::to_string(micro));
    REQUIRE(run_in(run, ham_run(folder, R"("freeze_steps": 0, "scope": "layer", "tau": 0.9)",
                                R"({"train": {"steps": 3, "micro_batch_size": )" + std::to_string(micro) + "}}")) == 0);
    std::vector<double> found;
    for (const int block : {0, 1}) {
      found.push_back(weights_of(run, 3, threshold_name(block))[0]);
      found.push_back(moments_of(run, 3, threshold_name(block) + ".m")[0]);
      found.push_back(moments_of(run, 3, threshold_name(block) + ".v")[0]);
    }
    first = first.empty() ? found : first;
    CHECK(found == first);
    CHECK(found[0] != std::log(0.9 / 1.1));
    least.push_back(statistic(run, "blocks.0.mixer", "kv_fraction_min")[0]);
    greatest.push_back(statistic(run, "blocks.0.mixer", "kv_fraction_max")[0]);
    deviation.push_back(statistic(run, "blocks.0.mixer", "score_std")[0]);
  }
  CHECK(least == std::vector<double>(3, least[0]));
  CHECK(greatest == std::vector<double>(3, greatest[0]));
  CHECK(least[0] < greatest[0]);
  CHECK(deviation[2] > 0.01);
  CHECK(deviation[0] == Approx(deviation[2]).epsilon(1e-5));
  CHECK(deviation[1] == Approx(deviation[2]).epsilon(1e-5));
}

FOLDER_TEST("a ham run that is resumed ends with the same bytes, thresholds and their moments too", "[fast]") {
  const auto config = [&](int steps) {
    return ham_run(
        folder, R"("tau": 0.9, "freeze_steps": 1)",
        R"({"schedule": {"type": "constant", "min_lr": null}, "train": {"steps": )" + std::to_string(steps) + "}}");
  };
  REQUIRE(run_in(folder / "whole", config(6)) == 0);
  REQUIRE(run_in(folder / "parts", config(3)) == 0);
  CHECK(updates_of(folder / "parts", 3, threshold_name(0)) == 2);
  REQUIRE(run_in(folder / "parts", config(6)) == 0);
  CHECK((tensor_bytes(folder / "parts", 6) == tensor_bytes(folder / "whole", 6)));
  CHECK(metrics_of(folder / "parts") == metrics_of(folder / "whole"));
}

FOLDER_TEST("a skipped step moves no threshold", "[fast]") {
  RunConfig config =
      ham_run(folder, R"("freeze_steps": 0, "tau": 0.9)", R"({"train": {"steps": 2, "max_consecutive_skips": 9}})");
  config.optimizer.lr = 1e300;  // after one step, the weights are no numbers
  REQUIRE(run_in(folder / "run", std::move(config)) == 0);
  CHECK(metric(folder / "run", "skipped").back() == 1);
  CHECK(updates_of(folder / "run", 2, threshold_name(0)) == 1);
}
