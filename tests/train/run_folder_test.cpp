#include "train/run_folder.h"

#include <fmt/core.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "data/shards/shard_writer.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/left_lock.h"
#include "tests/thrown.h"
#include "tests/train/run_fixture.h"
#include "train/model_source.h"

namespace {

const char* kSeven = R"({"train": {"checkpoint": {"every": 2, "keep": 9}}})";

}  // namespace

FOLDER_TEST("a run folder holds configuration, metrics, log, events and checkpoints, and no lock afterwards") {
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  for (const char* name : {"config.json", "metrics.jsonl", "train.log", "tb", "checkpoints/latest"}) {
    INFO(name);
    CHECK(fs::exists(folder / "run" / name));
  }
  CHECK_FALSE(fs::exists(folder / "run" / "lock"));
}

FOLDER_TEST("a finished run that is started again does nothing") {
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  const std::string before = read_file(folder / "run" / "metrics.jsonl");
  Heard heard;
  REQUIRE(run_in(folder / "run", test_run(folder), heard) == 0);
  REQUIRE(heard.lines.size() == 1);
  CHECK_THAT(heard.lines[0], Contains("complete: 7 steps in " + (folder / "run").string()));
  CHECK(read_file(folder / "run" / "metrics.jsonl") == before);
}

FOLDER_TEST("a run cannot be resumed into fewer steps than it has done") {
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  Heard heard;
  CHECK_THROWS_WITH(run_in(folder / "run", test_run(folder, R"({"train": {"steps": 6}})"), heard),
                    Contains("train.steps: found 6, expected at least 7, the steps of ") && Contains("step_00000007"));
}

FOLDER_TEST("a configuration that differs is refused with its paths, unless it is allowed") {
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  const std::string other = R"({"optimizer": {"lr": 0.02}, "train": {"document_mask": true, "steps": 9}})";
  Heard heard;
  CHECK_THAT(thrown<ConfigError>([&] { run_in(folder / "run", test_run(folder, other)); }),
             Contains("train.document_mask was false and is true") &&
                 Contains("optimizer.lr was 0.01 and is 0.02 (--allow-config-change goes on with it; --run-dir ") &&
                 !Contains("train.steps"));
  REQUIRE(run_in(folder / "run", test_run(folder, other), heard, {.allow_config_change = true}) == 0);
  CHECK(heard.has("the configuration has changed: "));
}

FOLDER_TEST("a run goes on whose stored configuration holds idle keys that earlier versions wrote") {
  const std::string changes = R"({"schedule": {"type": "wsd", "decay_steps": 2}})";
  REQUIRE(run_in(folder / "run", test_run(folder, changes)) == 0);
  make_former(checkpoint_in(folder / "run", 7));
  const auto edit = [&](const std::function<void(Json&)>& change) {
    for (const fs::path& file : {folder / "run" / "config.json", checkpoint_in(folder / "run", 7) / "config.json"}) {
      Json stored = parse_json_file(file.string());
      change(stored);
      write_file_atomic(file, stored.dump(1));
      const fs::path state = file.parent_path() / "state.json";
      if (!fs::exists(state)) { continue; }
      Json changed = parse_json_file(state.string());
      changed.set("config_hash", config_hash(stored));
      write_file_atomic(state, changed.dump(1));
    }
  };
  edit([](Json& stored) {
    stored.find("schedule")->set("decay_fraction", 0.2);
    stored.find("train")->set("deterministic", true);
  });
  Heard heard;
  CHECK(run_in(folder / "run", test_run(folder, changes), heard) == 0);
  CHECK_FALSE(heard.has("the configuration has changed"));
  // What is read from such a file as a configuration of its own is held to today's rules, with the cure.
  edit([](Json& stored) { stored.find("schedule")->set("decay_fraction", 0.5); });
  const Json stored = parse_json_file((folder / "run" / "config.json").string());
  CHECK_THROWS_WITH(Fields::read<ScheduleConfig>(stored.at("schedule"), "schedule"),
                    Contains("schedule.decay_fraction: give either decay_steps or decay_fraction, not both"));
}

TEST_CASE("the stored configuration of a run loses only what said nothing", "[fast]") {
  const auto without = [](const char* text) {
    Json config = parse_json(text, "c.json");
    drop_idle_keys(config);
    return config.dump();
  };
  CHECK(without(R"({"schedule":{"decay_steps":2,"decay_fraction":0.2}})") == R"({"schedule":{"decay_steps":2}})");
  CHECK(without(R"({"schedule":{"decay_steps":null,"decay_fraction":0.2}})") ==
        R"({"schedule":{"decay_steps":null,"decay_fraction":0.2}})");
  CHECK(without(R"({"model":{"at":{"1":{"mixer":null,"ffn":"f","memory":null}}}})") ==
        R"({"model":{"at":{"1":{"ffn":"f"}}}})");
  CHECK(without(R"({"at":{"1":{"mixer":"m","memory":null}}})") == R"({"at":{"1":{"mixer":"m"}}})");
  CHECK(without(R"({"train":{"steps":2,"deterministic":true}})") == R"({"train":{"steps":2}})");
  for (const char* same :
       {"{}", "[]", R"({"schedule":3,"train":[],"model":{"at":[1]}})", R"({"model":{"at":{"1":null}}})"}) {
    CHECK(without(same) == parse_json(same, "c.json").dump());
  }
}

FOLDER_TEST("a run that died before its first checkpoint starts again, with its configuration only") {
  Heard heard;
  heard.on_line = [](const std::string& line) {
    if (line.starts_with("step 2/7")) { throw std::runtime_error("died"); }
  };
  CHECK_THROWS(run_in(folder / "run", test_run(folder), heard));
  CHECK_THROWS_WITH(run_in(folder / "run", test_run(folder, R"({"optimizer": {"eps": 0.1}})")),
                    Contains("optimizer.eps"));
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  CHECK(metric(folder / "run", "step") == std::vector<double>{1, 2, 3, 4, 5, 6, 7});
}

FOLDER_TEST("a run that meets damaged data says from which step it goes on, or that it begins again", "[fast]") {
  std::string tokens = read_file(write_tokens(folder));
  tokens[2 * 50] = 99;  // in the rows of the second step
  folder.write("tokens.bin", tokens);
  for (const int every : {1, 100}) {
    CAPTURE(every);
    Heard heard;
    const std::string changes =
        R"({"data": {"shuffle": "none"}, "train": {"checkpoint": {"every": )" + std::to_string(every) + "}}}";
    CHECK_THROWS_AS(run_in(folder / std::to_string(every), test_run(folder, changes), heard), DataError);
    CHECK(heard.has("the last checkpoint is that of step 1: with the data in place") == (every == 1));
    CHECK(heard.has("there is no checkpoint yet") == (every == 100));
  }
}

FOLDER_TEST("a run that failed before its first step may be started with another configuration") {
  const auto fail_in = [&](const fs::path& run) {
    RunConfig config = test_run(folder);
    config.data.sources[0].path = "nowhere.bin";
    CHECK_THROWS_AS(run_in(run, std::move(config)), DataError);
  };
  fail_in(folder / "runs" / "new" / "run");
  CHECK_FALSE(fs::exists(folder / "runs"));
  fs::create_directory(folder / "runs");
  fail_in(folder / "runs" / "run");
  CHECK(fs::is_empty(folder / "runs"));
  fail_in(folder / "run");
  CHECK(run_in(folder / "run", test_run(folder, R"({"optimizer": {"lr": 0.02}})")) == 0);
}

FOLDER_TEST("fields that may differ do: the run goes on and says that the schedule changes") {
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  Heard heard;
  REQUIRE(run_in(folder / "run",
                 test_run(folder,
                          R"({"train": {"steps": 9, "micro_batch_size": 1, "log_every": 2, "threads": 2, "val_every": 5,
      "checkpoint": {"every": 3, "keep": 1}, "max_minutes": 60, "exit_code_on_stop": 3, "recompute": "block", "peak_tflops": 2}})"),
                 heard) == 0);
  CHECK(heard.has("train.steps was 7 and is 9: the schedule of the learning rate changes from here on"));
  CHECK(metric(folder / "run", "step").back() == 9);
}

FOLDER_TEST("resume never needs a new or empty folder") {
  Heard heard;
  const auto run = [&] { return run_in(folder / "run", test_run(folder), heard, {.resume = "never"}); };
  fs::create_directories(folder / "run");
  REQUIRE(run() == 0);
  CHECK_THAT(thrown<CheckpointError>(run), Contains("not empty"));
}

FOLDER_TEST("metrics without a configuration are not taken for a run") {
  folder.write("run/metrics.jsonl", "{\"step\":1}\n");
  CHECK_THROWS_WITH(run_in(folder / "run", test_run(folder)), Contains("metrics.jsonl without config.json"));
}

FOLDER_TEST("going back to an earlier checkpoint of the run gives the same run and removes what it leaves") {
  REQUIRE(run_in(folder / "run", test_run(folder, kSeven)) == 0);
  const auto lines = metrics_of(folder / "run");
  const std::string last = checkpoint_bytes(folder / "run", 7);
  Heard heard;
  heard.on_line = [](const std::string& line) {
    if (line.starts_with("step 3/7")) { raise(SIGINT); }
  };
  const RunOptions from{.resume = checkpoint_in(folder / "run", 2).string()};
  CHECK(run_in(folder / "run", test_run(folder, kSeven), heard, from) == 75);
  CHECK(heard.has("checkpoints/step_00000004 belongs to what the run leaves behind"));
  CHECK_FALSE(heard.has("checkpoints/step_00000002 belongs"));
  CHECK(heard.has("removed 5 lines of metrics.jsonl beyond step 2"));
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps() == std::vector<int64_t>{2, 3});
  REQUIRE(run_in(folder / "run", test_run(folder, kSeven)) == 0);
  CHECK(metrics_of(folder / "run") == lines);
  CHECK(checkpoint_bytes(folder / "run", 7) == last);
}

FOLDER_TEST("a checkpoint of another run is the start of a new folder") {
  REQUIRE(run_in(folder / "run", test_run(folder, kSeven)) == 0);
  const RunOptions from{.resume = checkpoint_in(folder / "run", 4).string()};
  Heard heard;
  REQUIRE(run_in(folder / "branch", test_run(folder, kSeven), heard, from) == 0);
  CHECK(metric(folder / "branch", "step") == std::vector<double>{5, 6, 7});
  CHECK(checkpoint_bytes(folder / "branch", 7) == checkpoint_bytes(folder / "run", 7));
  CHECK_THROWS_WITH(run_in(folder / "branch", test_run(folder, kSeven), heard, from),
                    Contains("has checkpoints of its own"));
  CHECK_THROWS_WITH(run_in(folder / "third", test_run(folder), heard, {.resume = (folder / "nothing").string()}),
                    Contains("cannot resume from here"));
}

FOLDER_TEST("init-from starts at step 0 with given weights and a fresh optimizer, and is not read again") {
  REQUIRE(run_in(folder / "run", test_run(folder, kSeven)) == 0);
  const std::string lr0 = R"({"train": {"steps": 2}, "optimizer": {"lr": 1e-300, "weight_decay": 0}})";
  for (const fs::path& from :
       {folder / "run", checkpoint_in(folder / "run", 7), checkpoint_in(folder / "run", 7) / "model.safetensors"}) {
    const fs::path run = folder / ("new" + std::to_string(std::hash<std::string>()(from.string())));
    Heard heard, again;
    REQUIRE(run_in(run, test_run(folder, lr0), heard, {.init_from = from}) == 0);
    CHECK(heard.has("weights from " + (checkpoint_in(folder / "run", 7) / "model.safetensors").string()));
    CHECK(weights_of(run, 2, "embed.weight") == weights_of(folder / "run", 7, "embed.weight"));
    CHECK(updates_of(run, 2, "embed.weight") == 2);
    REQUIRE(run_in(run, test_run(folder, lr0), again, {.init_from = from}) == 0);
    CHECK(again.has("is not read again: the run is resumed"));
  }
}

FOLDER_TEST("changed data is refused unless it is allowed, moved data is not a change") {
  const std::string stop = R"({"train": {"max_minutes": 1e-9}})";
  REQUIRE(run_in(folder / "run", test_run(folder, stop)) == 75);
  const auto at = [&](const std::string& name) {
    RunConfig config = test_run(folder);
    config.data.sources[0].path = (folder / name).string();
    return config;
  };
  fs::copy_file(folder / "tokens.bin", folder / "moved.bin");
  Heard heard;
  REQUIRE(run_in(folder / "run", at("moved.bin"), heard) == 0);
  REQUIRE(run_in(folder / "second", test_run(folder, stop)) == 75);
  folder.write("shorter.bin", read_file(folder / "tokens.bin").substr(0, 2000));
  CHECK_THAT(thrown<DataError>([&] { run_in(folder / "second", at("shorter.bin")); }), Contains("--allow-data-change"));
  REQUIRE(run_in(folder / "second", at("shorter.bin"), heard, {.allow_data_change = true}) == 0);
  CHECK(heard.has("the data has changed: "));
}

FOLDER_TEST("a second process on the same folder is told which one has it") {
  const FolderLock first(folder.path());
  CHECK_THAT(thrown<CheckpointError>([&] { run_in(folder.path(), test_run(folder)); }),
             Contains("in use by process " + std::to_string(::getpid()) + " on "));
  CHECK(fs::exists(folder / "lock"));
}

FOLDER_TEST("the lock of a dead process of this host is taken over and said so") {
  const pid_t child = leave_lock(folder.path());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(fs::exists(folder / "lock"));
  Heard heard;
  REQUIRE(run_in(folder.path(), test_run(folder), heard) == 0);
  CHECK(heard.has("took over the lock that process " + std::to_string(child) + " on "));
}

FOLDER_TEST("a configuration that no run wrote is not replaced") {
  folder.write("run/config.json", "{}");
  CHECK_THROWS_WITH(run_in(folder / "run", test_run(folder)),
                    Contains("config.json: the run would replace a file that no run wrote") && Contains("--run-dir"));
  CHECK(read_file(folder / "run" / "config.json") == "{}");
}

namespace {

/// What a run of 7 steps hears that saves at steps 3, 6 and 7, with `change` at step 4.
Heard changed_at_step_4(const std::function<void()>& change) {
  Heard heard;
  heard.on_line = [change](const std::string& line) {
    if (line.find("step 4/") != std::string::npos) { change(); }
  };
  return heard;
}

const char* kThree = R"({"train": {"checkpoint": {"every": 3, "keep": 9}}})";

/// Files of a run by name, as a finished run of another process leaves them.
void leave_run(const fs::path& run) {
  for (const char* name : {"config.json", "train.log", "metrics.jsonl", "tokenizer.model", "tb/events"}) {
    fs::create_directories((run / name).parent_path());
    std::ofstream(run / name) << "{\"step\":1}\n";
  }
}

void check_run_is_left(const fs::path& run) {
  for (const char* name : {"config.json", "train.log", "metrics.jsonl", "tokenizer.model", "tb/events"}) {
    INFO(name);
    CHECK(fs::exists(run / name));
  }
}

}  // namespace

FOLDER_TEST("a run whose lock another process has taken over saves nothing more") {
  Heard heard = changed_at_step_4([&] {
    fs::remove(folder / "run" / "lock");
    folder.write("run/lock", "no-such-host 1 2 - 0\n");
  });
  CHECK_THROWS_WITH(run_in(folder / "run", test_run(folder, kThree), heard),
                    Contains("process 1 on no-such-host has taken the run folder over"));
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps() == std::vector<int64_t>{3});
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").remove_stale().empty());
  CHECK(fs::exists(folder / "run" / "lock"));
}

FOLDER_TEST("a run whose lock was removed takes it anew and loses nothing") {
  REQUIRE(run_in(folder / "whole", test_run(folder, kThree)) == 0);
  Heard heard = changed_at_step_4([&] { fs::remove(folder / "run" / "lock"); });
  REQUIRE(run_in(folder / "run", test_run(folder, kThree), heard) == 0);
  CHECK(heard.count("lock was removed while the run goes on; it is taken anew") == 1);
  CHECK(metrics_of(folder / "run") == metrics_of(folder / "whole"));
  CHECK(checkpoint_bytes(folder / "run", 7) == checkpoint_bytes(folder / "whole", 7));
  CHECK_FALSE(fs::exists(folder / "run" / "lock"));
}

FOLDER_TEST("a run whose lock was removed saves nothing where another process has started and ended since") {
  Heard heard = changed_at_step_4([&] {
    fs::remove(folder / "run" / "lock");
    write_file_atomic(folder / "run" / "config.json", read_file(folder / "run" / "config.json"));
  });
  CHECK_THROWS_WITH(run_in(folder / "run", test_run(folder, kThree), heard),
                    Contains("another process has started here since; nothing is saved"));
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps() == std::vector<int64_t>{3});
}

FOLDER_TEST("files of a run that are deleted or replaced under it are written again, and nothing of them is lost") {
  const std::string change = GENERATE("deleted", "replaced", "the folder is renamed");
  REQUIRE(run_in(folder / "whole", test_run(folder, kThree)) == 0);
  const fs::path run = folder / "run";
  Heard heard = changed_at_step_4([&] {
    if (change == "the folder is renamed") { return fs::rename(run, folder / "renamed"); }
    for (const char* name : {"config.json", "train.log", "metrics.jsonl"}) {
      fs::remove(run / name);
      if (change == "replaced") { std::ofstream(run / name) << "other\n"; }
    }
    fs::remove_all(run / "tb");
  });
  REQUIRE(run_in(run, test_run(folder, kThree), heard) == 0);
  INFO(change);
  for (const char* name : {"config.json", "train.log", "metrics.jsonl"}) {
    INFO(name);
    const std::string what = change == "replaced"
                                 ? std::string(" was replaced; what lay there is ") + name + ".replaced"
                                 : std::string(" was deleted");
    CHECK(heard.count((run / name).string() + what + "; the file is written again") == 1);
    if (change == "replaced") { CHECK(read_file(run / (std::string(name) + ".replaced")) == "other\n"); }
  }
  CHECK(metrics_of(run) == metrics_of(folder / "whole"));
  CHECK(std::distance(fs::directory_iterator(run / "tb"), {}) == 1);
  CHECK_THAT(read_file(run / "train.log"), Contains("step 1/7") && Contains("done: 7 steps"));
  CHECK(checkpoint_bytes(run, 7) == checkpoint_bytes(folder / "whole", 7));
  CHECK(run_in(run, test_run(folder, kThree)) == 0);
}

FOLDER_TEST("what killed processes have left in a run folder goes at the next start") {
  REQUIRE(run_in(folder / "run", test_run(folder, kThree)) == 0);
  folder.write("run/tokenizer.model.tmp-17", "half");
  folder.write("run/config.json.tmp-17", "half");
  folder.write("run/notes.tmp-17", "of the user");
  Heard heard;
  REQUIRE(run_in(folder / "run", test_run(folder, R"({"train": {"checkpoint": {"every": 3, "keep": 2}}})"), heard) ==
          0);
  CHECK(heard.has("removed config.json.tmp-17, left unfinished"));
  CHECK_FALSE(fs::exists(folder / "run/config.json.tmp-17"));
  CHECK_FALSE(fs::exists(folder / "run/tokenizer.model.tmp-17"));
  CHECK(fs::exists(folder / "run/notes.tmp-17"));
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps() == std::vector<int64_t>{6, 7});
}

FOLDER_TEST("metrics that end before the checkpoint are said") {
  const auto lines = [](int every) {
    return fmt::format(R"({{"train": {{"steps": 8, "log_every": {:d}, "checkpoint": {{"every": 4, "keep": 9}}}}}})",
                       every);
  };
  REQUIRE(run_in(folder / "run", test_run(folder, R"({"train": {"checkpoint": {"every": 4, "keep": 9}}})")) == 0);
  const std::string metrics = read_file(folder / "run" / "metrics.jsonl");
  Heard whole, cut, none;
  REQUIRE(run_in(folder / "run", test_run(folder), whole) == 0);
  CHECK_FALSE(whole.has("metrics.jsonl ends at"));
  fs::resize_file(folder / "run" / "metrics.jsonl", metrics.find("\n", metrics.find("{\"step\":3")) + 1);
  REQUIRE(run_in(folder / "run", test_run(folder), cut) == 0);
  CHECK(cut.has("warning: metrics.jsonl ends at step 3, the checkpoint is of step 7: lines between them are lost"));
  fs::remove(folder / "run" / "metrics.jsonl");
  REQUIRE(run_in(folder / "run", test_run(folder), none) == 0);
  CHECK(none.has("metrics.jsonl ends at step 0, the checkpoint is of step 7"));

  REQUIRE(run_in(folder / "rare", test_run(folder, lines(3))) == 0);
  Heard rare;
  const RunOptions from{.resume = checkpoint_in(folder / "rare", 4).string()};
  REQUIRE(run_in(folder / "rare", test_run(folder, lines(1)), rare, from) == 0);
  CHECK_FALSE(rare.has("metrics.jsonl ends at"));  // line 3 was the last before the checkpoint of step 4
}

FOLDER_TEST(
    "a start that has waited for a lock finds what another process has done meanwhile, and deletes none of it") {
  folder.write("run/lock", "no-such-host 1 2 - 0\n");
  Heard heard;
  heard.on_line = [&](const std::string& line) {
    if (line.find("its lock is taken over if") == std::string::npos) { return; }
    leave_run(folder / "run");
    fs::remove(folder / "run" / "lock");
  };
  CHECK_THROWS_AS(run_in(folder / "run", test_run(folder), heard), Error);
  check_run_is_left(folder / "run");
}

FOLDER_TEST("a signal to a start that waits for a lock removes nothing of its holder") {
  folder.write("run/lock", "no-such-host 1 2 - 0\n");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    Heard heard;
    heard.on_line = [&](const std::string& line) {
      if (line.find("its lock is taken over if") == std::string::npos) { return; }
      leave_run(folder / "run");
      ::raise(SIGINT);
    };
    run_in(folder / "run", test_run(folder), heard);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  check_run_is_left(folder / "run");
  CHECK(read_file(folder / "run/lock") == "no-such-host 1 2 - 0\n");
}

FOLDER_TEST("a start with another configuration after the first has finished deletes nothing") {
  REQUIRE(run_in(folder / "run", test_run(folder)) == 0);
  CHECK_THROWS_AS(run_in(folder / "run", test_run(folder, R"({"optimizer": {"lr": 0.02}})")), ConfigError);
  CHECK(metric(folder / "run", "step") == std::vector<double>{1, 2, 3, 4, 5, 6, 7});
  CHECK(fs::exists(folder / "run" / "train.log"));
}

FOLDER_TEST("the run folder keeps the tokenizer, and the resolved configuration points to it") {
  RunConfig config = test_run(folder);
  const fs::path model = folder.write("some.model", "tokenizer bytes");
  config.data.tokenizer = Json::object({{"type", Json("sentencepiece")},
                                        {"file", Json(model.string())},
                                        {"add_bos", Json(false)},
                                        {"add_eos", Json(true)}});
  REQUIRE(run_in(folder / "run", std::move(config)) == 0);
  CHECK(read_file(folder / "run" / "tokenizer.model") == "tokenizer bytes");
  const Json stored = parse_json_file((folder / "run" / "config.json").string());
  CHECK(stored.at("data").at("tokenizer").at("file").as_string() == (folder / "run" / "tokenizer.model").string());
  RunConfig other = test_run(folder);
  other.data.tokenizer = stored.at("data").at("tokenizer");
  other.data.tokenizer.set("file", Json(folder.write("other.model", "other bytes").string()));
  CHECK_THROWS_WITH(run_in(folder / "run", std::move(other)),
                    Contains("data.tokenizer.file") && Contains("other contents"));
}

FOLDER_TEST("a tokenizer other than that of the data is refused") {
  ShardWriterOptions options;
  options.directory = folder / "shards";
  options.vocab_size = 20;
  options.tokenizer_hash = 7;
  ShardWriter writer(options);
  writer.add_document(std::vector<int32_t>(200, 3));
  writer.finish();
  RunConfig config =
      test_run(folder, R"({"data": {"sources": [{"path": ")" + (folder / "shards").string() + R"("}]}})");
  config.data.tokenizer = Json::object({{"type", Json("bytes")}});
  CHECK_THROWS_WITH(
      run_in(folder / "run", std::move(config)),
      Contains("tokens of another tokenizer than that of the run (found tokenizer hash 0000000000000007"));
}
