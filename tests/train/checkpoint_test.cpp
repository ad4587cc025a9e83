#include "train/checkpoint.h"

#include <sys/stat.h>

#include <fstream>
#include <set>

#include "core/hash.h"
#include "core/sign_of_life.h"
#include "tests/thrown.h"
#include "tests/train/faults.h"
#include "tests/train/run_fixture.h"
#include "train/model_source.h"

namespace {

std::set<std::string> entries(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) { names.insert(entry.path().filename().string()); }
  return names;
}

/// Cuts or changes one byte of a file.
void damage(const fs::path& file, bool cut) {
  if (cut) {
    fs::resize_file(file, fs::file_size(file) - 1);
    return;
  }
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(f.get() ^ 1);
  f.seekp(-1, std::ios::end);
  f.put(byte);
}

/// Trains 4 steps with a checkpoint after each.
void make_run(const TempFolder& folder, const fs::path& run) {
  REQUIRE(run_in(run, test_run(folder, R"({"train": {"steps": 4, "checkpoint": {"every": 1, "keep": 9}}})")) == 0);
}

RunConfig longer(const TempFolder& folder) {
  return test_run(folder, R"({"train": {"steps": 6, "checkpoint": {"every": 1, "keep": 9}}})");
}

}  // namespace

FOLDER_TEST("a checkpoint holds parameters, moments, counts and state under their names") {
  make_run(folder, folder / "run");
  const fs::path checkpoint = checkpoint_in(folder / "run", 4);
  CHECK(entries(checkpoint) ==
        std::set<std::string>{"model.safetensors", "optimizer.safetensors", "state.json", "config.json"});
  const SafetensorsFile model(checkpoint / "model.safetensors"), optimizer(checkpoint / "optimizer.safetensors");
  CHECK(model.at("embed.weight").dtype_text == "F64");
  CHECK(model.at("embed.weight").shape == std::vector<int64_t>{29, 12});
  CHECK(model.at("blocks.1.mixer.memory").dtype_text == "F64");
  CHECK(model.at("blocks.1.mixer.count").dtype_text == "I32");
  CHECK(optimizer.at("lm_head.weight.m").shape == std::vector<int64_t>{29, 12});
  CHECK(optimizer.at("lm_head.weight.t").dtype_text == "I64");
  CHECK(optimizer.at("lm_head.weight.t").shape == std::vector<int64_t>{1});
  CHECK(optimizer.integers("lm_head.weight.t")[0] == 4);
  CHECK(optimizer.find("blocks.0.mixer.threshold.v") != nullptr);
  CHECK(optimizer.find("blocks.0.mixer.memory.m") == nullptr);
  const Json state = parse_json_file((checkpoint / "state.json").string());
  CHECK(state.at("step").as_int() == 4);
  CHECK(state.at("tokens").as_int() == 144);
  CHECK(state.at("seed").as_int() == 5);
  CHECK(state.at("spike_window").items().size() == 4);
  const std::string bytes = read_file(checkpoint / "model.safetensors");
  CHECK(state.at("files").at("model.safetensors").at("size").as_int() == static_cast<int64_t>(bytes.size()));
  CHECK(state.at("files").at("model.safetensors").at("crc32").as_int() ==
        static_cast<int64_t>(crc32(bytes.data(), bytes.size())));
  CHECK(state.at("config_hash").as_string() == config_hash(parse_json_file((checkpoint / "config.json").string())));
  CHECK(read_file(folder / "run" / "checkpoints" / "latest") == "step_00000004\n");
  CHECK(find_weights(folder / "run") == checkpoint / "model.safetensors");
}

FOLDER_TEST("a rank that makes, checks and loads many values gives a sign of life for each") {
  make_run(folder, folder / "run");
  const auto signs_of = [](const std::function<void()>& work) {
    const int64_t before = signs_of_life();
    work();
    return signs_of_life() - before;
  };
  const fs::path checkpoint = checkpoint_in(folder / "run", 4);
  CHECK(signs_of([&] { verify_checkpoint(checkpoint); }) >= 2);  // a piece of each file at least
  Arena arena(DeviceKind::cpu, "values");
  Model model(longer(folder).model);
  model.params().allocate(arena, DType::f64, false);
  const auto tensors = static_cast<int64_t>(model.params().all().size());
  Stream stream;
  CHECK(signs_of([&] { model.params().initialize(stream, 1); }) == tensors);
  CHECK(signs_of([&] { load_weights(checkpoint, stream, model.params()); }) >= tensors);
}

FOLDER_TEST("a path to latest means the checkpoint that it names") {
  make_run(folder, folder / "run");
  const fs::path checkpoints = folder / "run" / "checkpoints", older = checkpoints / "step_00000002";
  folder.write("run/checkpoints/latest", "step_00000002\n");
  CHECK(find_checkpoint(checkpoints / "latest") == older);
  CHECK(find_weights(checkpoints / "latest") == older / "model.safetensors");
}

FOLDER_TEST("fp32 runs keep fp32 tensors") {
  REQUIRE(run_in(folder / "run", test_run(folder, R"({"train": {"precision": "fp32"}})")) == 0);
  const fs::path checkpoint = checkpoint_in(folder / "run", 7);
  CHECK(SafetensorsFile(checkpoint / "model.safetensors").at("embed.weight").dtype_text == "F32");
  CHECK(SafetensorsFile(checkpoint / "optimizer.safetensors").at("embed.weight.v").dtype_text == "F32");
}

FOLDER_TEST("the newest checkpoints and multiples of keep_every are kept, and the last step is saved") {
  REQUIRE(run_in(folder / "run",
                 test_run(folder,
                          R"({"train": {"steps": 9, "checkpoint": {"every": 2, "keep": 2, "keep_every": 4}}})")) == 0);
  CHECK(CheckpointFolder(folder / "run" / "checkpoints").steps() == std::vector<int64_t>{4, 8, 9});
}

FOLDER_TEST("what users keep beside checkpoints under other names is left alone") {
  const std::vector<std::string> names{"step_1", "step_00000002.bak", "step_last", "old_step_00000003"};
  for (const std::string& name : names) { folder.write("run/checkpoints/" + name + "/model.safetensors", "kept"); }
  make_run(folder, folder / "run");
  REQUIRE(run_in(folder / "run",
                 test_run(folder, R"({"train": {"steps": 6, "checkpoint": {"every": 1, "keep": 1}}})")) == 0);
  for (const std::string& name : names) { CHECK(fs::exists(folder / "run/checkpoints" / name / "model.safetensors")); }
  CHECK(CheckpointFolder(folder / "run/checkpoints").steps() == std::vector<int64_t>{6});
}

FOLDER_TEST("what a crash left unfinished is removed at the start") {
  make_run(folder, folder / "run");
  fs::create_directories(folder / "run" / "checkpoints" / ".tmp-step_00000005");
  folder.write("run/checkpoints/.tmp-step_00000005/model.safetensors", "half");
  folder.write("run/checkpoints/latest.tmp-123", "step_0");
  Heard heard;
  REQUIRE(run_in(folder / "run", longer(folder), heard) == 0);
  CHECK(heard.has("removed checkpoints/.tmp-step_00000005, left unfinished"));
  CHECK(entries(folder / "run" / "checkpoints") == std::set<std::string>{"latest", "step_00000001", "step_00000002",
                                                                         "step_00000003", "step_00000004",
                                                                         "step_00000005", "step_00000006"});
}

FOLDER_TEST("a checkpoint that is deleted while it is read makes way for the latest") {
  const auto write = [&](const std::string& name) {
    folder.write("run/checkpoints/" + name + "/model.safetensors", "");
    folder.write("run/checkpoints/" + name + "/config.json", R"({"model": {
      "vocab_size": 40, "hidden_size": 16, "num_layers": 1, "pattern": [{"mixer": "mix", "ffn": "mlp"}],
      "layers": {"mix": {"type": "gdn", "num_heads": 2, "key_head_dim": 4, "value_head_dim": 4},
                 "mlp": {"type": "swiglu", "intermediate_size": 20}}}})");
    return folder / "run/checkpoints" / name;
  };
  const fs::path gone = write("step_00000004"), latest = write("step_00000003"), named = write("step_00000002");
  folder.write("run/checkpoints/latest", "step_00000004\n");
  std::vector<fs::path> tried;
  const auto read = [&](const ModelSource& source) {
    tried.push_back(source.weights.parent_path());
    if (tried.size() > 1) { return true; }
    fs::remove_all(gone);
    folder.write("run/checkpoints/latest", "step_00000003\n");
    throw CheckpointError(gone.string(), "cannot open");
  };
  CHECK(with_latest(folder / "run", read));
  CHECK(tried == std::vector<fs::path>{gone, latest});
  fs::remove_all(latest);
  CHECK_THROWS_WITH(with_latest(folder / "run", read), Contains("names a checkpoint that is not there"));
  CHECK_THROWS_WITH(
      with_latest(named, [&](const ModelSource&) -> bool { throw CheckpointError("x", "another error"); }),
      Contains("another error"));
}

FOLDER_TEST("a checkpoint without latest is found, and a damaged latest is named") {
  make_run(folder, folder / "run");
  fs::remove(folder / "run" / "checkpoints" / "latest");
  Heard heard;
  REQUIRE(run_in(folder / "run", longer(folder), heard) == 0);
  CHECK(heard.has("resuming after step 4"));
  folder.write("run/checkpoints/latest", "newest\n");
  CHECK_THROWS_WITH(run_in(folder / "run", longer(folder)),
                    Contains("checkpoints/latest: names no checkpoint (found \"newest\"") &&
                        Contains("the newest here is step_00000006") &&
                        Contains("--allow-older goes on from step_00000006"));
}

FOLDER_TEST("a latest that is empty, or names a checkpoint that is gone, is passed over by --allow-older") {
  const auto [text, message, step] = GENERATE(table<std::string, std::string, int>(
      {{"", "checkpoints/latest: names no checkpoint (found \"\"", 4},
       {"step_00000009\n", "checkpoints/latest: names a checkpoint that is not there", 4}}));
  make_run(folder, folder / "run");
  folder.write("run/checkpoints/latest", text);
  INFO(text);
  CHECK_THAT(thrown<CheckpointError>([&] { run_in(folder / "run", longer(folder)); }),
             Contains(message) && Contains("--allow-older goes on from step_00000004"));
  CHECK_THAT(thrown<CheckpointError>([&] { find_weights(folder / "run"); }),
             Contains("checkpoints/latest: names ") && Contains("step_00000004"));
  Heard heard;
  REQUIRE(run_in(folder / "run", longer(folder), heard, {.allow_older = true}) == 0);
  CHECK(heard.has("resuming after step 4"));
  CHECK(CheckpointFolder(folder / "run/checkpoints").latest() == 6);
}

FOLDER_TEST("one changed bit of state.json or config.json is refused, wherever it is") {
  make_run(folder, folder / "run");
  const fs::path checkpoint = checkpoint_in(folder / "run", 4);
  for (const char* name : {"state.json", "config.json"}) {
    const std::string bytes = read_file(checkpoint / name);
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string changed = bytes;
      changed[i] ^= 1;
      std::ofstream(checkpoint / name, std::ios::binary) << changed;
      INFO(name << " byte " << i);
      CHECK_THAT(thrown<CheckpointError>([&] { read_run_state(checkpoint); }), Contains(name));
    }
    std::ofstream(checkpoint / name, std::ios::binary) << bytes;
  }
  CHECK(read_run_state(checkpoint).step == 4);
}

FOLDER_TEST("the step of a checkpoint is that of its folder's name, and a copy may have any name") {
  make_run(folder, folder / "run");
  const fs::path checkpoint = checkpoint_in(folder / "run", 4);
  fs::rename(checkpoint, folder / "step_00000005");
  CHECK_THROWS_WITH(read_run_state(folder / "step_00000005"), Contains("state.json: found step 4, expected 5"));
  fs::rename(folder / "step_00000005", folder / "best");
  CHECK(verify_checkpoint(folder / "best").step == 4);
}

FOLDER_TEST("a changed configuration or state is found by all that read a model") {
  make_run(folder, folder / "run");
  const fs::path checkpoint = checkpoint_in(folder / "run", 4), weights = checkpoint / "model.safetensors";
  const std::string config = read_file(checkpoint / "config.json");
  for (const char* name : {"config.json", "state.json"}) {
    const std::string bytes = read_file(checkpoint / name);
    damage(checkpoint / name, false);
    CHECK_THROWS_AS(read_model_source(checkpoint), CheckpointError);
    CHECK_THROWS_AS(read_model_source(weights), CheckpointError);
    CHECK_THROWS_AS(verify_weights(weights), CheckpointError);
    write_file_atomic(checkpoint / name, bytes);
  }
}

FOLDER_TEST("a checkpoint of former versions is read, and its configuration compared by its hash") {
  make_run(folder, folder / "run");
  const fs::path checkpoint = checkpoint_in(folder / "run", 4);
  make_former(checkpoint);
  CHECK(verify_checkpoint(checkpoint).step == 4);
  REQUIRE(run_in(folder / "run", longer(folder)) == 0);
  make_former(checkpoint_in(folder / "run", 6));
  Json config = parse_json_file((checkpoint_in(folder / "run", 6) / "config.json").string());
  config.find("train")->set("seed", 6);
  write_file_atomic(checkpoint_in(folder / "run", 6) / "config.json", config.dump(1));
  CHECK_THROWS_WITH(run_in(folder / "run", longer(folder)), Contains("config.json: found hash "));
}

FOLDER_TEST("weights that are no numbers start no run") {
  make_run(folder, folder / "run");
  const fs::path weights = checkpoint_in(folder / "run", 4) / "model.safetensors";
  fs::copy(weights, folder / "w.safetensors");
  const SafetensorsFile file(folder / "w.safetensors");
  const std::string name = "blocks.1.mixer.weight";
  std::string bytes = read_file(folder / "w.safetensors");
  std::vector<double> values = file.doubles(name);
  const std::string part(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  const size_t place = bytes.find(part);
  REQUIRE(place != std::string::npos);
  const double nan = std::nan("");
  bytes.replace(place + 3 * sizeof nan, sizeof nan, reinterpret_cast<const char*>(&nan), sizeof nan);
  folder.write("w.safetensors", bytes);
  Heard heard;
  CHECK_THROWS_WITH(
      run_in(folder / "new", test_run(folder), heard, {.init_from = folder / "w.safetensors"}),
      Contains("w.safetensors: blocks.1.mixer.weight: weights that are no numbers") && Contains("at element 3"));
}

FOLDER_TEST("a damaged checkpoint is reported with what differs, and only --allow-older goes behind it") {
  make_run(folder, folder / "origin");
  struct Case {
    std::string name, message;
    std::function<void(const fs::path&)> harm;
  };
  const std::vector<Case> cases = {
      {"cut", "model.safetensors: found ", [](const fs::path& c) { damage(c / "model.safetensors", true); }},
      {"bit", "optimizer.safetensors: found CRC-32 ",
       [](const fs::path& c) { damage(c / "optimizer.safetensors", false); }},
      {"missing", "optimizer.safetensors is missing",
       [](const fs::path& c) { fs::remove(c / "optimizer.safetensors"); }},
      {"folder", "optimizer.safetensors is no file",
       [](const fs::path& c) {
         fs::remove(c / "optimizer.safetensors");
         fs::create_directory(c / "optimizer.safetensors");
       }},
      {"pipe", "state.json is no file",
       [](const fs::path& c) {
         fs::remove(c / "state.json");
         REQUIRE(::mkfifo((c / "state.json").c_str(), 0600) == 0);
       }},
      {"state", "state.json:1:9", [](const fs::path& c) { std::ofstream(c / "state.json") << "{\"step\":"; }},
      {"keys", "state.json: found CRC-32 ",
       [](const fs::path& c) {
         Json state = parse_json_file((c / "state.json").string());
         state.erase("files");
         std::ofstream(c / "state.json") << state.dump();
       }},
      {"gone", "latest: names a checkpoint that is not there", [](const fs::path& c) { fs::remove_all(c); }},
  };
  for (const Case& c : cases) {
    INFO(c.name);
    const fs::path run = folder / c.name;
    fs::copy(folder / "origin", run, fs::copy_options::recursive);
    c.harm(checkpoint_in(run, 4));
    CHECK_THAT(
        thrown<CheckpointError>([&] { run_in(run, longer(folder)); }),
        Contains("step_00000004") && Contains(c.message) && Contains("--allow-older goes on from step_00000003"));
    Heard heard;
    REQUIRE(run_in(run, longer(folder), heard, {.allow_older = true}) == 0);
    CHECK(heard.has("resuming after step 3"));
    CHECK(heard.has(c.message));
    CHECK(verify_checkpoint(checkpoint_in(run, 4)).step == 4);
  }
}

FOLDER_TEST("a full disk is an error that keeps the checkpoints before") {
  const fs::path run = folder / "disk";
  const SmallDisk disk(run, 192);
  if (!disk.is_there()) { return; }
  const std::string changes = R"({"train": {"steps": 50, "checkpoint": {"every": 1, "keep": 99}}})";
  CHECK_THAT(thrown<CheckpointError>([&] { run_in(run, test_run(folder, changes)); }), Contains("No space left"));
  const CheckpointFolder checkpoints(run / "checkpoints");
  REQUIRE(checkpoints.latest());
  CHECK(checkpoints.steps().back() == *checkpoints.latest());
  CHECK(verify_checkpoint(checkpoints.path_of(*checkpoints.latest())).step == *checkpoints.latest());
}

FOLDER_TEST("a read-only run folder is an error before anything is computed") {
  const fs::path run = folder / "disk";
  const SmallDisk disk(run, 1024);
  if (!disk.is_there()) { return; }
  disk.make_read_only();
  CHECK_THAT(thrown<CheckpointError>([&] { run_in(run, test_run(folder)); }), Contains("Read-only file system"));
  CHECK_THROWS_WITH(run_in(run / "below", test_run(folder)), Contains("cannot create the folder"));
}

FOLDER_TEST("weights of another model are refused with their first differences") {
  make_run(folder, folder / "run");
  RunConfig config = test_run(folder, "{}", false);
  config.model.hidden_size = 14;
  Heard heard;
  CHECK_THROWS_WITH(run_in(folder / "other", std::move(config), heard, {.init_from = folder / "run"}),
                    Contains("embed.weight is [29, 12], not [29, 14]") && Contains("; and ") &&
                        Contains("blocks.0.mixer.memory [12] is not in the model"));
  ModelConfig three = test_model();
  three.num_layers = 3;
  Stream stream;
  Arena arena(DeviceKind::cpu);  // outlives the model's parameters
  Model model(three);
  model.params().allocate(arena, DType::f64, true);
  CHECK_THROWS_WITH(load_checkpoint(checkpoint_in(folder / "run", 4), stream, model.params()),
                    Contains("blocks.2.mixer.weight [12, 12] is missing"));
}
