#include <map>

#include "data/tasks/synthetic_tasks.h"
#include "tests/eval/model_file.h"
#include "tests/test.h"

namespace {

std::string model_of(int vocab, const std::string& memory = "") {
  return R"({"vocab_size": )" + std::to_string(vocab) + R"(, "hidden_size": 12, "num_layers": 1, "init_std": 0.4,
    "layers": {"g": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4, "chunk_size": 16},
               "f": {"type": "fwpkm", "num_subkeys": 3, "key_dim": 4, "value_dim": 6, "top_k": 2, "chunk_size": 5},
               "m": {"type": "swiglu", "intermediate_size": 16}}, "pattern": [{"mixer": "g", "ffn": "m")" +
         memory + "}]}";
}

/// A random model; with `config`, the run configuration that it was trained with.
struct RandomModel {
  TempFolder folder;
  std::string config;

  explicit RandomModel(int vocab, const std::string& run = "", const std::string& memory = "") : config(run) {
    write_random_model(folder, model_of(vocab, memory), DType::f64);
  }
  ScoringModel load() const {
    ModelSource source = read_model_source(folder / "model.json");
    if (!config.empty()) { source.config = parse_json(config, "run.json"); }
    return ScoringModel(std::move(source), folder / "w.safetensors", {DeviceKind::cpu, DType::f64});
  }
  EvalResult run(const std::string& keys, std::vector<Json>* samples = nullptr) const {
    ScoringModel s = load();
    return evaluate(s, keys, nullptr, 32, samples);
  }
};

int64_t asked(const EvalResult& r) { return r.metrics.at("accuracy").at("n").as_int(); }

}  // namespace

TEST_CASE("mqar counts by distance, and leaves out queries that are too near", "[fast]") {
  const RandomModel m(64);
  const std::string cases =
      R"("kind": "mqar", "vocab": 64, "samples": 20, "cases": [{"length": 24, "pairs": 3}, {"length": 40, "pairs": 5}])";
  const EvalResult all = m.run(cases), far = m.run(cases + R"(, "min_distance": 16)");
  int64_t distant = 0, total = 0;
  for (const Json& bin : all.series.at("by_distance").items()) {
    total += bin.at("n").as_int();
    if (bin.at("from").as_int() >= 16) { distant += bin.at("n").as_int(); }
  }
  CHECK(total == asked(all));
  CHECK(asked(all) == 20 * (3 + 5));
  CHECK(asked(far) == distant);
  CHECK((distant > 0 && distant < total));
  CHECK(m.run(cases + R"(, "min_distance": 1000)").status == "failed");

  SyntheticTask task;
  task.task = "mqar";
  task.seed = 7;
  task.lengths = {24};
  task.vocab = 64;
  task.pairs = 3;
  std::map<int64_t, int64_t> queries;  // by distance, the largest first
  for (uint64_t k = 0; k < 20; ++k) {
    const TaskRow row = generate_task_row(task, k);
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      for (size_t p = 0; p < 3 && row.targets[i] >= 0; ++p) {
        if (row.inputs[2 * p] == row.inputs[i]) { ++queries[-static_cast<int64_t>(i - (2 * p + 1))]; }
      }
    }
  }
  int64_t counted = 0;
  for (const auto& [distance, n] : queries) {
    counted += n;
    const std::string one =
        R"("kind": "mqar", "seed": 7, "vocab": 64, "samples": 20, "cases": [{"length": 24, "pairs": 3}])";
    CHECK(asked(m.run(one + ", \"min_distance\": " + std::to_string(-distance))) == counted);
  }
  CHECK(counted == 20 * 3);
}

TEST_CASE("rows of more than 8,192 tokens are fewer unless it is said how many", "[fast]") {
  struct Announced : Progress {
    void begin(std::string_view, uint64_t total, Unit, uint64_t) override {
      rows = static_cast<int64_t>(total);
      throw ConfigError("rows", "enough");  // they would take a while
    }
    int64_t rows = 0;
  };
  const RandomModel m(64);
  const auto rows = [&](const std::string& keys) {
    const auto evaluations =
        evaluations_of(R"({"name": "x", "kind": "icr", "task": "icr_basic", "vocab": 64, )" + keys + "}");
    ScoringModel model = m.load();
    Announced progress;
    EvalContext context{model, nullptr, 32, 42, progress, {}};
    CHECK_THROWS_WITH(evaluations[0].task->run(context), Contains("enough"));
    return progress.rows;
  };
  CHECK(rows(R"("lengths": [8192])") == 200);
  CHECK(rows(R"("lengths": [8193])") == 50);
  CHECK(rows(R"("lengths": [512, 8193])") == 250);
  CHECK(rows(R"("lengths": [8192, 8193], "samples": 3)") == 6);
}

TEST_CASE("accuracy is that of the last reading, and only fast weights remember the readings before", "[fast]") {
  const std::string kind =
      R"("kind": "mqar", "seed": 7, "vocab": 20, "samples": 60, "cases": [{"length": 18, "pairs": 4}])";
  const RandomModel plain(24), memory(24, "", R"(, "memory": "f")");
  CHECK(metric(plain.run(kind + R"(, "readings": 3)"), "accuracy") == metric(plain.run(kind), "accuracy"));

  SyntheticTask task;
  task.task = "mqar";
  task.seed = 7;
  task.lengths = {18};
  task.vocab = 20;  // small, so that a random model is right now and then
  task.pairs = 4;
  ScoringModel model = memory.load();
  const auto weights = model.save_fast_weights();
  constexpr ScoringModel::Reading kReading{FastUpdate::streaming, false};
  int64_t right[2] = {0, 0};
  for (uint64_t k = 0; k < 60; ++k) {
    const TaskRow row = generate_task_row(task, k);
    size_t used = row.inputs.size();
    while (row.targets[used - 1] < 0) { --used; }
    model.restore_fast_weights(weights);
    for (int64_t& count : right) {
      const auto state = model.new_state();
      for (size_t i = 0; i < used; ++i) {
        const std::vector<double> logits = model.read(std::span(row.inputs).subspan(i, 1), *state, kReading);
        count += std::max_element(logits.begin(), logits.end()) - logits.begin() == row.targets[i] ? 1 : 0;
      }
      model.flush(*state, kReading);
    }
  }
  REQUIRE(right[0] != right[1]);
  const EvalResult once = memory.run(kind);
  CHECK(asked(once) == 60 * 4);
  CHECK(metric(once, "accuracy") == static_cast<double>(right[0]) / 240.0);
  CHECK(once.series.at("by_setting").items()[0].at("state_bytes").as_int() > 0);
  CHECK(metric(memory.run(kind + R"(, "readings": 2)"), "accuracy") == static_cast<double>(right[1]) / 240.0);

  // With one update at the end of a reading the first knows nothing of the row, and the second learns all of it at
  // once.
  constexpr ScoringModel::Reading kEnd{FastUpdate::at_end, false}, kNever{FastUpdate::never, false};
  int64_t blind = 0, second = 0;
  for (uint64_t k = 0; k < 60; ++k) {
    TaskRow row = generate_task_row(task, k);
    const auto count = [&](int64_t& right, const ScoringModel::Reading& how) {
      const auto state = model.new_state();
      const auto found = model.answers(row.inputs, row.targets, *state, how);
      for (size_t i = 0; i < row.targets.size(); ++i) {
        right += row.targets[i] >= 0 && found[i].token == row.targets[i];
      }
    };
    while (row.targets.back() < 0) {
      row.inputs.pop_back();
      row.targets.pop_back();
    }
    model.restore_fast_weights(weights);
    count(blind, kNever);
    int64_t first = 0;
    count(first, kEnd);
    count(second, kEnd);
  }
  REQUIRE(blind != second);
  REQUIRE(second != right[1]);
  CHECK(metric(memory.run(kind + R"(, "update": "end")"), "accuracy") == static_cast<double>(blind) / 240.0);
  CHECK(metric(memory.run(kind + R"(, "update": "end", "readings": 2)"), "accuracy") ==
        static_cast<double>(second) / 240.0);
}

TEST_CASE("icr and icl report per length and per example of a function", "[fast]") {
  const RandomModel m(10000);
  const EvalResult icr = m.run(
      R"("kind": "icr", "task": "icr_basic", "lengths": [29, 41], "word": 2, "queries": 2, "vocab": 40, "samples": 3)");
  REQUIRE(icr.series.at("by_setting").items().size() == 2);
  CHECK(asked(icr) == 2 * 3 * 2 * 2);
  const EvalResult icl = m.run(R"("kind": "icl", "seed": 7, "functions": [2], "length": 70, "dim": 3, "samples": 40)");
  CHECK(asked(icl) == 40 * (70 / 8) * 3);
  SyntheticTask task;
  task.task = "icl";
  task.seed = 7;
  task.lengths = {70};
  task.functions = 2;
  task.dim = 3;
  std::map<int64_t, int64_t> expected;  // answers to the n-th example of a function, each row by itself
  for (uint64_t k = 0; k < 40; ++k) {   // some arrows come again
    const TaskRow row = generate_task_row(task, k);
    std::map<int32_t, int64_t> examples;  // by arrow, behind which the answers of an example begin
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      const bool is_first = row.targets[i] >= 0 && (i == 0 || row.targets[i - 1] < 0);
      if (is_first) { expected[examples[row.inputs[i]]++] += 3; }
    }
  }
  std::map<int64_t, int64_t> found;
  for (const Json& point : icl.series.at("by_example").items()) {
    found[point.at("example").as_int()] = point.at("n").as_int();
  }
  CHECK(found == expected);
}

TEST_CASE("recall evaluations refuse what they cannot judge", "[fast]") {
  CHECK_THROWS_WITH(RandomModel(24).run(R"("kind": "mqar", "cases": [{"length": 18, "pairs": 4}])"),
                    Contains("vocab_size: found 24, expected at least 8192 for length 18, 4 pairs"));
  const RandomModel trained(24,
                            R"({"train": {"seed": 3}, "data": {"sources": [{"type": "synthetic", "task": "mqar"}]}})");
  for (const char* empty : {R"("kind": "mqar", "cases": [])", R"("kind": "icr", "task": "icr_basic", "lengths": [])",
                            R"("kind": "icl", "functions": [])"}) {
    CHECK_THROWS_WITH(RandomModel(24).run(empty), Contains(": found an empty list, expected a list of "));
  }
  CHECK_THROWS_WITH(RandomModel(24).run(R"("kind": "icr", "task": "icr_basic", "copies": 3)"),
                    Contains("copies: found 3") && Contains("only with task \"icr_positional\""));
  const std::string keys =
      R"("kind": "mqar", "vocab": 24, "samples": 1, "cases": [{"length": 18, "pairs": 4}], "seed": )";
  CHECK_THROWS_WITH(trained.run(keys + "3"),
                    Contains("seed: found 3, expected a seed other than that of the training rows"));
  CHECK(asked(trained.run(keys + "4")) == 4);

  const std::string cases = R"("kind": "mqar", "vocab": 24, "samples": 1, "cases": )";
  const EvalResult some = RandomModel(24).run(cases + R"([{"length": 10, "pairs": 4}, {"length": 18, "pairs": 4}])");
  CHECK(some.status == "ok");
  CHECK(asked(some) == 4);
  REQUIRE(some.series.at("skipped").items().size() == 1);
  CHECK(some.series.at("skipped").items()[0].at("setting").as_string() == "length 10, 4 pairs");
  const EvalResult none = RandomModel(24).run(cases + R"([{"length": 10, "pairs": 4}])");
  CHECK(none.status == "skipped");
  CHECK_THAT(none.reason, Contains("length 10, 4 pairs"));
}

TEST_CASE("accuracy has a standard error over rows", "[fast]") {
  const RandomModel m(24);
  std::vector<Json> samples;
  const EvalResult result =
      m.run(R"("kind": "mqar", "vocab": 24, "samples": 12, "cases": [{"length": 18, "pairs": 4}])", &samples);
  std::vector<double> scores;
  for (const Json& sample : samples) { scores.push_back(sample.at("score").as_double()); }
  REQUIRE(scores.size() == 12);
  const Json expected = mean_metric(scores);  // all rows ask as often
  REQUIRE(expected.at("stderr").as_double() > 0);
  CHECK(result.metrics.at("accuracy").at("stderr").as_double() ==
        Approx(expected.at("stderr").as_double()).epsilon(1e-12));
  CHECK(m.run(R"("kind": "mqar", "vocab": 24, "samples": 1, "cases": [{"length": 18, "pairs": 4}])")
            .metrics.at("accuracy")
            .find("stderr") == nullptr);
}
