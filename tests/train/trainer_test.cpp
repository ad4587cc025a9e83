#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "core/terminal.h"
#include "tests/thrown.h"
#include "tests/train/run_fixture.h"

namespace {

Json state_of(const fs::path& folder, int64_t step) {
  return parse_json_file((checkpoint_in(folder, step) / "state.json").string());
}

/// Notes what begins, and the time left at each step.
struct TimeBar final : Progress {
  std::vector<std::string> begun;
  std::vector<double> left;
  void begin(std::string_view title, uint64_t, Unit, uint64_t) override { begun.emplace_back(title); }
  void begin_part(std::string_view title, uint64_t, Unit) override { begun.push_back("part " + std::string(title)); }
  void time_left(double seconds) override { left.push_back(seconds); }
};

struct Poison {
  explicit Poison(std::vector<int64_t> steps) { TestMixerConfig::poisoned = std::move(steps); }
  ~Poison() {
    TestMixerConfig::poisoned.clear();
    TestMixerConfig::poisoned_memory.clear();
  }
};

}  // namespace

FOLDER_TEST(
    "a run writes lines for every step: the loss of the initial weights first, the schedule's lr, statistics of "
    "layers") {
  const RunConfig config = test_run(folder);
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  const std::vector<double> steps = metric(folder / "run", "step"), losses = metric(folder / "run", "loss");
  CHECK(steps == std::vector<double>{1, 2, 3, 4, 5, 6, 7});
  CHECK(metric(folder / "run", "tokens") == std::vector<double>{36, 72, 108, 144, 180, 216, 252});
  CHECK(losses.front() == Approx(std::log(29.0)).epsilon(0.02));  // init_std 0.02: nearly uniform
  CHECK(losses.back() < losses.front());
  CHECK(metric(folder / "run", "skipped") == std::vector<double>(7, 0));
  const Schedule schedule(config.schedule, config.optimizer.lr, 7);
  const std::vector<double> lr = metric(folder / "run", "lr");
  for (int64_t s = 0; s < 7; ++s) { CHECK(lr.at(static_cast<size_t>(s)) == Approx(schedule(s)).epsilon(1e-12)); }
  const Json line = parse_json(metrics_of(folder / "run")[0], "line");
  for (const char* layer : {"blocks.0.mixer", "blocks.1.mixer"}) {
    CHECK(line.at("layers").at(layer).find("memory_0") != nullptr);
  }
}

FOLDER_TEST("log_every chooses the lines, the first and the last step have one always") {
  REQUIRE(run_in(folder / "run", test_run(folder, R"({"train": {"log_every": 3}})")) == 0);
  CHECK(metric(folder / "run", "step") == std::vector<double>{1, 3, 6, 7});
}

FOLDER_TEST("a stop after every step of a run and a restart give the run's bits") {
  write_tokens(folder, "val.bin", 2);
  const std::string changes =
      R"({"train": {"val_every": 2, "document_mask": true, "random_window": {"p": 0.5, "window": 3}},
      "data": {"validation": [{"name": "v", "path": "val.bin", "format": "raw_u16", "max_rows": 5}]}})";
  REQUIRE(run_in(folder / "straight", test_run(folder, changes)) == 0);
  const auto expected = metrics_of(folder / "straight");
  CHECK(expected.size() == 7 + 4);
  for (int stop = 1; stop < 7; ++stop) {
    INFO("stopped after step " << stop);
    const fs::path run = folder / ("run" + std::to_string(stop));
    Heard heard;
    heard.on_line = [&](const std::string& line) {
      if (line.starts_with("step " + std::to_string(stop) + "/7 loss")) { raise(SIGUSR1); }
    };
    CHECK(run_in(run, test_run(folder, changes), heard) == 75);
    CHECK(heard.has("stopped after step " + std::to_string(stop) + " by SIGUSR1"));
    REQUIRE(run_in(run, test_run(folder, changes), heard) == 0);
    CHECK(metrics_of(run) == expected);
    CHECK(checkpoint_bytes(run, 7) == checkpoint_bytes(folder / "straight", 7));
  }
}

FOLDER_TEST("a run that died goes on from its last checkpoint with the same bits") {
  const std::string changes = R"({"train": {"checkpoint": {"every": 2, "keep": 9}}})";
  REQUIRE(run_in(folder / "straight", test_run(folder, changes)) == 0);
  struct Death {};
  for (int death = 1; death < 7; ++death) {
    INFO("died after step " << death);
    const fs::path run = folder / ("run" + std::to_string(death));
    Heard heard;
    heard.on_line = [&](const std::string& line) {
      if (line.starts_with("step " + std::to_string(death) + "/7 loss")) { throw Death(); }
    };
    CHECK_THROWS_AS(run_in(run, test_run(folder, changes), heard), Death);
    Heard again;
    REQUIRE(run_in(run, test_run(folder, changes), again) == 0);
    // The line comes before the save of its step.
    CHECK(again.has("resuming after step " + std::to_string((death - 1) / 2 * 2)) == (death > 2));
    CHECK(metrics_of(run) == metrics_of(folder / "straight"));
    CHECK(checkpoint_bytes(run, 7) == checkpoint_bytes(folder / "straight", 7));
  }
}

FOLDER_TEST("micro-batch sizes and recompute give the same run") {
  // Fast weights advance by micro-batch, so the mixer has none here; documents make unequal counts of valid targets.
  const auto changes = [](int rows, const std::string& precision, const std::string& recompute) {
    return R"({"train": {"micro_batch_size": )" + std::to_string(rows) +
           R"(, "document_mask": true, "steps": 10, "precision": ")" + precision + R"(", "recompute": ")" + recompute +
           "\"}}";
  };
  for (const std::string precision : {"fp64", "fp32"}) {
    const std::string whole = "whole-" + precision;
    REQUIRE(run_in(folder / whole, test_run(folder, changes(4, precision, "none"), false)) == 0);
    const std::vector<double> losses = metric(folder / whole, "loss");
    const std::vector<double> weights = weights_of(folder / whole, 10, "blocks.0.mixer.weight");
    for (const int rows : {1, 2}) {
      const std::string split = "split-" + precision + std::to_string(rows);
      REQUIRE(run_in(folder / split, test_run(folder, changes(rows, precision, "none"), false)) == 0);
      const std::vector<double> other = metric(folder / split, "loss");
      const std::vector<double> other_weights = weights_of(folder / split, 10, "blocks.0.mixer.weight");
      // Sums in another order: the tolerances of docs/training.md, Guarantees.
      for (size_t i = 0; i < losses.size(); ++i) {
        CHECK(other[i] == Approx(losses[i]).epsilon(precision == "fp64" ? 1e-10 : 1e-5));
      }
      for (size_t i = 0; i < weights.size(); ++i) {
        CHECK(std::abs(other_weights[i] - weights[i]) < (precision == "fp64" ? 1e-10 : 1e-4));
      }
    }
  }
  const auto model = [&](const std::string& run) {
    return read_file(checkpoint_in(folder / run, 10) / "model.safetensors");
  };
  for (const std::string mode : {"block", "mixer", "ffn"}) {
    REQUIRE(run_in(folder / mode, test_run(folder, changes(4, "fp32", mode), false)) == 0);
    CHECK(model(mode) == model("whole-fp32"));
  }
}

FOLDER_TEST("the number of threads changes nothing", "[threads]") {
  REQUIRE(run_in(folder / "one", test_run(folder, R"({"train": {"threads": 1, "precision": "fp32"}})")) == 0);
  REQUIRE(run_in(folder / "three", test_run(folder, R"({"train": {"threads": 3, "precision": "fp32"}})")) == 0);
  CHECK(metrics_of(folder / "one") == metrics_of(folder / "three"));
  CHECK(read_file(checkpoint_in(folder / "one", 7) / "model.safetensors") ==
        read_file(checkpoint_in(folder / "three", 7) / "model.safetensors"));
}

FOLDER_TEST("a NaN leaves weights, moments and counts alone while data and schedule go on") {
  const std::string changes = R"({"train": {"checkpoint": {"every": 1, "keep": 9}}})";
  Poison poison({2});
  Heard heard;
  REQUIRE(run_in(folder / "run", test_run(folder, changes, false), heard) == 0);
  CHECK(heard.has("step 3 skipped: the loss is nan (rows 8 to 11)"));
  CHECK(heard.has("step 3/7 loss nan ppl nan gnorm nan"));
  CHECK(metric(folder / "run", "skipped") == std::vector<double>{0, 0, 1, 1, 1, 1, 1});
  CHECK(std::isnan(metric(folder / "run", "loss")[2]));
  CHECK(metric(folder / "run", "lr")[3] == Schedule(test_run(folder).schedule, 0.01, 7)(3));
  for (const auto& name :
       {"embed.weight", "blocks.0.mixer.weight", "blocks.1.ffn.down_proj.weight", "final_norm.weight"}) {
    CHECK(weights_of(folder / "run", 2, name) == weights_of(folder / "run", 3, name));
    CHECK(updates_of(folder / "run", 3, name) == 2);
    CHECK(updates_of(folder / "run", 7, name) == 6);
  }
  const auto moments = [&](int64_t step) { return moments_of(folder / "run", step, "embed.weight.v"); };
  CHECK(moments(2) == moments(3));
  CHECK(moments(3) != moments(4));
  CHECK(state_of(folder / "run", 3).at("loader").at("next_row").as_int() == 12);
  CHECK(state_of(folder / "run", 3).at("skipped").as_int() == 1);
  CHECK(state_of(folder / "run", 3).at("consecutive_skips").as_int() == 1);
  CHECK(state_of(folder / "run", 4).at("consecutive_skips").as_int() == 0);
}

FOLDER_TEST("a skipped step moves fast weights but nothing that layers update after steps") {
  Poison poison({3});
  REQUIRE(run_in(folder / "run", test_run(folder, R"({"train": {"checkpoint": {"every": 1, "keep": 9}}})")) == 0);
  CHECK(weights_of(folder / "run", 7, "blocks.0.mixer.threshold")[0] == 0.5 + 6 * 0.25);
  CHECK(updates_of(folder / "run", 7, "blocks.0.mixer.threshold") == 6);
  CHECK(moments_of(folder / "run", 7, "blocks.0.mixer.threshold.m")[1] == 6);
  CHECK(SafetensorsFile(checkpoint_in(folder / "run", 7) / "model.safetensors").integers("blocks.0.mixer.count")[0] ==
        6);
  CHECK(weights_of(folder / "run", 3, "blocks.0.mixer.memory") !=
        weights_of(folder / "run", 4, "blocks.0.mixer.memory"));
}

FOLDER_TEST("too many skipped steps in a row stop the run, and stop stops at the first") {
  Poison poison({1, 2, 3});
  Heard heard;
  CHECK_THROWS_AS(
      run_in(folder / "run",
             test_run(folder, R"({"train": {"max_consecutive_skips": 2, "checkpoint": {"every": 1}}})", false), heard),
      NumericError);
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").latest() == 3);
  CHECK_THAT(read_file(folder / "run" / "train.log"),
             Contains(" [error] rank 0: step 4: the loss is nan (found 3 skipped steps in a row"));
  CHECK_THROWS_WITH(run_in(folder / "stop", test_run(folder, R"({"train": {"nonfinite": "stop"}})", false), heard),
                    Contains("step 2: the loss is nan (train.nonfinite is \"stop\")"));
}

FOLDER_TEST("carried state that is not finite is an error that names step and tensor") {
  Poison poison({});
  TestMixerConfig::poisoned_memory = {2};
  CHECK_THROWS_WITH(run_in(folder / "skip", test_run(folder)),
                    Contains("step 3: blocks.0.mixer.memory: the state that this layer carries is not finite"));
  CHECK_THROWS_AS(run_in(folder / "stop", test_run(folder, R"({"train": {"nonfinite": "stop"}})")), NumericError);
}

FOLDER_TEST("validation changes nothing and its loss is the mean over valid targets") {
  write_tokens(folder, "val.bin", 2);
  const std::string with = R"({"train": {"val_every": 3}, "data": {"validation": [
      {"name": "a", "path": "val.bin", "format": "raw_u16", "max_rows": 5},
      {"name": "b", "path": "val.bin", "format": "raw_u16", "max_rows": 5}]}})";
  REQUIRE(run_in(folder / "plain", test_run(folder)) == 0);
  Heard heard;
  REQUIRE(run_in(folder / "validated", test_run(folder, with), heard) == 0);
  CHECK(metric(folder / "plain", "loss") == metric(folder / "validated", "loss"));
  CHECK(read_file(checkpoint_in(folder / "plain", 7) / "model.safetensors") ==
        read_file(checkpoint_in(folder / "validated", 7) / "model.safetensors"));
  std::vector<std::string> lines;
  for (const std::string& line : metrics_of(folder / "validated")) {
    if (line.find("\"val\"") != std::string::npos) { lines.push_back(line); }
  }
  REQUIRE(lines.size() == 6);
  const Json a = parse_json(lines[0], "line"), b = parse_json(lines[1], "line");
  CHECK(a.at("step").as_int() == 3);
  CHECK(a.at("val").as_string() == "a");
  CHECK(a.at("tokens").as_int() == 45);
  CHECK(a.at("ppl").as_double() == Approx(std::exp(a.at("loss").as_double())));
  CHECK(a.at("loss").as_double() == b.at("loss").as_double());  // the second source starts from fresh state too
  CHECK(heard.has("step 7/7 val b loss"));
}

FOLDER_TEST("without val_every validation follows the last step only, and a loss that is not finite is warned of") {
  write_tokens(folder, "val.bin", 2);
  const std::string with =
      R"({"data": {"validation": [{"name": "a", "path": "val.bin", "format": "raw_u16", "max_rows": 3}]}})";
  const std::string warning = "step 7: the validation loss of a is not finite";
  Heard sound, heard;
  REQUIRE(run_in(folder / "sound", test_run(folder, with, false), sound) == 0);
  CHECK_FALSE(sound.has("warning"));
  const std::vector<std::string> lines = metrics_of(folder / "sound");
  REQUIRE(lines.size() == 8);
  CHECK(lines.back().starts_with("{\"step\":7,\"val\":\"a\""));
  Poison poison({6});  // the last step leaves the NaN in place
  REQUIRE(run_in(folder / "run", test_run(folder, with, false), heard) == 0);
  CHECK(heard.has("step 7/7 val a loss nan ppl nan"));
  CHECK(heard.has("warning: " + warning));
  CHECK_THAT(read_file(folder / "run" / "train.log"), Contains(" [warning] rank 0: " + warning));
  CHECK(metrics_of(folder / "run").back().starts_with(R"({"step":7,"val":"a","loss":"nan")"));
}

FOLDER_TEST("a validation that a signal interrupts is done again by the run that goes on") {
  write_tokens(folder, "val.bin", 2);
  const std::string with = R"({"train": {"val_every": 3}, "data": {"validation": [
      {"name": "a", "path": "val.bin", "format": "raw_u16", "max_rows": 5},
      {"name": "b", "path": "val.bin", "format": "raw_u16", "max_rows": 4}]}})";
  REQUIRE(run_in(folder / "straight", test_run(folder, with)) == 0);
  Heard heard;
  heard.on_line = [](const std::string& line) {
    if (line.starts_with("step 3/7 val a")) { raise(SIGTERM); }
  };
  CHECK(run_in(folder / "run", test_run(folder, with), heard) == 75);
  CHECK_FALSE(heard.has("step 3/7 val b"));
  Heard again;
  REQUIRE(run_in(folder / "run", test_run(folder, with), again) == 0);
  CHECK_FALSE(again.has("step 3/7 val a"));
  CHECK(metrics_of(folder / "run") == metrics_of(folder / "straight"));
  CHECK(checkpoint_bytes(folder / "run", 7) == checkpoint_bytes(folder / "straight", 7));
}

FOLDER_TEST("the time limit saves and stops, with the exit code of the configuration") {
  Heard heard;
  CHECK(run_in(folder / "run", test_run(folder, R"({"train": {"max_minutes": 1e-9, "exit_code_on_stop": 0}})"),
               heard) == 0);
  CHECK(heard.has("by train.max_minutes = 1e-09"));
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").latest() == 1);  // one step, however short the time
  REQUIRE(run_in(folder / "run", test_run(folder), heard) == 0);
  REQUIRE(run_in(folder / "straight", test_run(folder)) == 0);
  CHECK(metrics_of(folder / "run") == metrics_of(folder / "straight"));
}

FOLDER_TEST("the random window of a step is one coin for all micro-batches, and off in validation") {
  // The mixer reports the mean of the window over micro-batches, and refuses one outside training.
  write_tokens(folder, "val.bin", 2);
  const std::string changes =
      R"({"train": {"random_window": {"p": 0.5, "window": 3}, "steps": 12, "micro_batch_size": 1},
      "data": {"validation": [{"name": "a", "path": "val.bin", "format": "raw_u16", "max_rows": 3}]}})";
  REQUIRE(run_in(folder / "run", test_run(folder, changes)) == 0);
  std::set<double> seen;
  for (uint64_t s = 0; s < 12; ++s) {
    const double window =
        parse_json(metrics_of(folder / "run")[s], "line").at("layers").at("blocks.0.mixer").at("window").as_double();
    CHECK(window == (Rng(5, "random_window", s).uniform() < 0.5 ? 3 : 0));
    seen.insert(window);
  }
  CHECK(seen.size() == 2);
}

FOLDER_TEST("a run says once per layer that mesanet takes too few steps") {
  for (const int steps : {1, 20}) {
    const std::string model = R"({"vocab_size": 29, "hidden_size": 12, "num_layers": 2, "init_std": 0.5, "layers": {
      "x": {"type": "mesanet", "num_heads": 2, "key_head_dim": 5, "conv_size": 0, "cg_steps": )" +
                              std::to_string(steps) + R"(}, "mlp": {"type": "swiglu", "intermediate_size": 10}},
      "pattern": [{"mixer": "x", "ffn": "mlp"}]})";
    Heard heard;
    REQUIRE(run_in(folder / ("run" + std::to_string(steps)), with_model(folder, "{}", model), heard) == 0);
    for (const char* layer : {"blocks.0.mixer", "blocks.1.mixer"}) {
      CHECK(heard.count(std::string(layer) + " solves up to a residual of") == (steps == 1 ? 1 : 0));
    }
  }
}

namespace {

/// The test mixer beside a parameter of no use.
struct WithUnused final : LayerConfig {
  void fields(Fields&) override {}
  std::unique_ptr<Layer> make(const BuildContext& c) const override {
    c.declare("unused", {3}, init::constant(1.0));
    return TestMixerConfig().make(c);
  }
};

}  // namespace

FOLDER_TEST("a run says after its first step which parameters the loss does not reach") {
  RunConfig config = test_run(folder);
  config.model.layers[0].config = std::make_unique<WithUnused>();
  Heard heard;
  REQUIRE(run_in(folder / "run", std::move(config), heard) == 0);
  CHECK(heard.count("the loss does not reach") == 1);
  CHECK(
      heard.has("step 1: the loss does not reach 2 parameters, which stay as they are: blocks.0.mixer.unused, "
                "blocks.1.mixer.unused"));
  Heard quiet;
  REQUIRE(run_in(folder / "whole", test_run(folder), quiet) == 0);
  CHECK(quiet.count("the loss does not reach") == 0);
}

FOLDER_TEST("the console line has its fixed order") {
  Heard heard;
  REQUIRE(run_in(folder / "run", test_run(folder, R"({"train": {"peak_tflops": 0.001}})"), heard) == 0);
  const auto last = std::find_if(heard.lines.begin(), heard.lines.end(),
                                 [](const std::string& line) { return line.starts_with("step 7/7 loss"); });
  REQUIRE(last != heard.lines.end());
  CHECK_THAT(
      *last,
      Catch::Matches(
          R"(step 7/7 loss \d\.\d{4} ppl \d+\.\d\d gnorm \d\.\d{3} lr \d\.\d\de-\d\d tok/s \d+ mfu \d+\.\d% mem \d+\.\dGiB dt \d+ms tokens 252 eta 00:00:00 skipped 0)"));
  const Json line = parse_json(metrics_of(folder / "run")[6], "line");
  CHECK(line.at("mfu").as_double() > 0);
  Heard unknown;
  REQUIRE(run_in(folder / "other", test_run(folder), unknown) == 0);
  CHECK(unknown.has(" mfu n/a "));
}

FOLDER_TEST("the console line has a unit for many tokens") {
  for (const auto& [tokens, text] : {std::pair{int64_t{999}, "999"},
                                     {12'345, "12.3K"},
                                     {999'960, "1.0M"},
                                     {12'345'678, "12.3M"},
                                     {5'000'000'000, "5.0B"},
                                     {1'234'567'000'000'000, "1234.6T"}}) {
    CAPTURE(text);
    const fs::path run = folder / text;
    REQUIRE(run_in(run, test_run(folder)) == 0);
    make_former(checkpoint_in(run, 7));
    Json state = parse_json_file((checkpoint_in(run, 7) / "state.json").string());
    state.set("tokens", tokens - 36);  // before the last step
    write_file_atomic(checkpoint_in(run, 7) / "state.json", state.dump(1) + "\n");
    Heard heard;
    REQUIRE(run_in(run, test_run(folder, R"({"train": {"steps": 8}})"), heard) == 0);
    CHECK(heard.has(" tokens " + std::string(text) + " eta "));
  }
}

FOLDER_TEST("start-up says device, parameters, FLOPs, batches, memory, data and time; the log says more of them") {
  Heard heard;
  REQUIRE(
      run_in(
          folder / "run",
          test_run(
              folder,
              R"({"optimizer": {"groups": [{"match": "nothing has this name", "lr": 1}], "no_decay": ["norm", "nor this"]}})"),
          heard) == 0);
  const std::string log = read_file(folder / "run" / "train.log");
  for (const char* part :
       {"device: cpu", "precision fp64", "parameters: ", "FLOPs per token: ", "batch: 4 rows x 9 tokens = 36",
        "2 micro-batches of 2 rows", "memory plan: ", "activations and temporaries", "data source 0", "epochs",
        "estimated time: at least a fraction of a second, at ", "optimizer.groups.0 applies to no parameter",
        "optimizer.no_decay.1 matches no parameter", "done: 7 steps"}) {
    INFO(part);
    CHECK(heard.has(part));
    CHECK_THAT(log, Contains(part));
  }
  for (const char* part : {"blocks.*.mixer.weight", "  2 x [12, 12]", "blocks.*.ffn/"}) {
    INFO(part);
    CHECK_FALSE(heard.has(part));
    CHECK_THAT(log, Contains(part));
  }
}

FOLDER_TEST("a start with many validation sets fits a terminal of 24 lines of 80 columns") {
  std::string sets;
  for (int i = 0; i < 40; ++i) {
    sets += fmt::format(R"({}{{"name": "v{:d}", "path": "held.bin", "format": "raw_u16", "split_token": 0}})",
                        i > 0 ? ", " : "", i);
  }
  write_tokens(folder, "held.bin", 2);
  Heard heard;
  REQUIRE(run_in(folder / "run", test_run(folder, R"({"data": {"validation": [)" + sets + "]}}"), heard) == 0);
  int lines = 0;
  for (const std::string& line : heard.lines) {
    if (line.starts_with("step ")) { break; }
    const std::string folded = fold(line, 80);
    lines += 1 + static_cast<int>(std::count(folded.begin(), folded.end(), '\n'));
  }
  CHECK(lines <= 24);
  CHECK(heard.has("and 36 more"));
  CHECK_THAT(read_file(folder / "run" / "train.log"), Contains("validation v39: "));
}

FOLDER_TEST("the end of a run says its losses, time, speed and what to do next") {
  write_tokens(folder, "held.bin", 2);
  Heard heard;
  const std::string held =
      R"({"data": {"validation": [{"name": "held", "path": "held.bin", "format": "raw_u16", "split_token": 0}]}})";
  REQUIRE(run_in(folder / "run", test_run(folder, held), heard) == 0);
  const std::vector<double> losses = metric(folder / "run", "loss");
  const Json last = parse_json(metrics_of(folder / "run").back(), "metrics.jsonl");
  CHECK(heard.has("took 00:00:0"));
  CHECK(heard.has(" tokens/s in training"));
  CHECK(heard.has(
      fmt::format("last training loss {:.4f}, validation held {:.4f}", losses.back(), last.at("loss").as_double())));
  CHECK(heard.has("next: hebb report " + (folder / "run").string()));
  CHECK_FALSE(heard.has("hebb generate"));  // raw tokens have no tokenizer
}

FOLDER_TEST("the time left has the validations in it, the first one too") {
  write_tokens(folder, "held.bin", 2);
  // One after the last step, with a multiple of val_every there and without.
  const std::string every = GENERATE("0", "7");
  const std::string held =
      R"({"data": {"validation": [{"name": "held", "path": "held.bin", "format": "raw_u16", "split_token": 0}]},
          "train": {"val_every": )" +
      every + "}}";
  TimeBar bar;
  Trainer trainer(test_run(folder, held), {.run_folder = folder / "run"}, {}, {{}, &bar}, "test");
  REQUIRE(trainer.run() == 0);
  REQUIRE(bar.left.size() == 7);
  // Before the last step is validated nothing else is left: all 333 rows, against 4 of a step.
  CHECK(bar.left.back() > 0);
  CHECK(bar.begun == std::vector<std::string>{"train", "part validation held"});
}

FOLDER_TEST("a plan that the machine cannot hold is a memory error before the first step") {
  RunConfig config = test_run(folder);
  config.model.vocab_size = int64_t{1} << 42;
  Heard heard;
  CHECK_THAT(thrown<MemoryError>([&] { run_in(folder / "run", std::move(config), heard); }),
             Contains("memory plan: the run does not fit (found "));
}
