#include "train/checkpoint.h"

#include <fstream>
#include <set>

#include "core/hash.h"
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

FOLDER_TEST("a checkpoint without latest is found, and a damaged latest is named") {
  make_run(folder, folder / "run");
  fs::remove(folder / "run" / "checkpoints" / "latest");
  Heard heard;
  REQUIRE(run_in(folder / "run", longer(folder), heard) == 0);
  CHECK(heard.has("resuming after step 4"));
  folder.write("run/checkpoints/latest", "newest\n");
  CHECK_THROWS_WITH(run_in(folder / "run", longer(folder)),
                    Contains("checkpoints/latest: no checkpoint (found \"newest\""));
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
      {"state", "state.json:1:9", [](const fs::path& c) { std::ofstream(c / "state.json") << "{\"step\":"; }},
      {"keys", "files",
       [](const fs::path& c) {
         Json state = parse_json_file((c / "state.json").string());
         state.erase("files");
         std::ofstream(c / "state.json") << state.dump();
       }},
      {"gone", "no such checkpoint", [](const fs::path& c) { fs::remove_all(c); }},
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
