// What a training step asks of the host, and steps that are launched as CUDA graphs, on the device "cuda" (a GPU, or
// the SIMT emulator).
#include "inspect/bench.h"
#include "tests/device/device_run.h"
#include "train/memory_plan.h"
#include "train/model_source.h"

namespace {

/// Steps of the small model in tests/golden/`model`. Only the first and the last step are logged, so that those in
/// between are like most of a run. Without train.autotune, whose measurements wait and launch graphs as often as time
/// allows. `changes` is merged over everything.
RunConfig small_run(const TempFolder& folder, const std::string& model, int64_t steps, bool graphs,
                    const std::string& changes = "{}") {
  Json json = json_in(folder, R"({"name": "steps",
    "data": {"sources": [{"path": "tokens.bin", "format": "raw_u16", "split_token": 0}]},
    "train": {"batch_size": 2, "micro_batch_size": 1, "sequence_length": 13, "seed": 5, "device": "cuda", "precision": "fp32",
              "autotune": false, "log_every": 1000, "checkpoint": {"every": 1000}},
    "optimizer": {"lr": 0.01, "clip_norm": 0.3}, "schedule": {"type": "constant", "warmup_steps": 3}})");
  json.set("model", parse_json_file((fs::path(test_data_path()) / "golden" / model / "model.json").string()));
  json.find("train")->set("steps", Json(steps));
  json.find("train")->set("cuda_graphs", Json(graphs));
  merge_json(json, parse_json(changes, "changes.json"));
  return resolved_run(json);
}

/// What a run did to the device, and what it left behind.
struct Outcome {
  cuda::DeviceCounts counts;
  std::vector<std::string> metrics;
  std::string weights;
};

Outcome run_steps(const fs::path& folder, RunConfig config, Heard& heard) {
  const int64_t steps = config.train.steps;
  const cuda::DeviceCounts before = cuda::device_counts();
  REQUIRE(run_in(folder, std::move(config), heard) == 0);
  Outcome out;
  out.counts = cuda::device_counts();
  out.counts.waits -= before.waits;
  out.counts.allocations -= before.allocations;
  out.counts.graphs -= before.graphs;
  out.metrics = metrics_of(folder);
  out.weights = tensor_bytes(folder, steps);
  return out;
}

Outcome run_steps(const fs::path& folder, RunConfig config) {
  Heard heard;
  return run_steps(folder, std::move(config), heard);
}

/// A threshold that moves from the first step on.
const char* const kLearnedThreshold = R"({"train": {"log_every": 4},
    "model": {"layers": {"x": {"threshold": {"mode": "learned", "freeze_steps": 0}}}}})";

/// A step waits once and asks for no memory; as graphs it gives the same bits.
void check_model(const std::string& model) {
  CAPTURE(model);
  const TempFolder folder;
  Heard heard;
  run_steps(folder / "first", small_run(folder, model, 1, false));  // the process makes its stream
  // These start, log two steps and end; the second has three steps more.
  const Outcome shorter = run_steps(folder / "shorter", small_run(folder, model, 2, false));
  const Outcome single = run_steps(folder / "single", small_run(folder, model, 5, false), heard);
  CHECK(heard.has("launches: one by one, not as CUDA graphs"));
  CHECK(heard.has("  train.cuda_graphs is false"));
  heard = {};
  CHECK(single.counts.waits - shorter.counts.waits == 3);
  CHECK(single.counts.allocations == shorter.counts.allocations);
  CHECK(single.counts.graphs == 0);
  const Outcome graphs = run_steps(folder / "graphs", small_run(folder, model, 5, true), heard);
  CHECK(graphs.metrics == single.metrics);
  CHECK(graphs.weights == single.weights);
  CHECK(graphs.counts.waits == single.counts.waits);
  CHECK(graphs.counts.allocations == single.counts.allocations);
  // The optimizer's second step is recorded, and so is the second of 6 passes that are not logged.
  const bool needs_host = model == "vq-2";
  CHECK(heard.has("blocks.1.mixer (vq) draws the dither of each step on the host") == needs_host);
  CHECK(heard.has("launches: as CUDA graphs") == !needs_host);
  CHECK(graphs.counts.graphs == (needs_host ? 0 : 4 + 5));
}

}  // namespace

TEST_CASE("a run leaves a gigabyte of a GPU to its driver") {
  if (!has_device()) { return; }
  CHECK(available_memory(DeviceKind::cuda).bytes <= cuda::device_info().free_bytes - (int64_t{1} << 30));
}

TEST_CASE("a training step waits for the device once, asks for no memory, and has the same bits as a graph") {
  const std::string model = GENERATE(as<std::string>(), "attention-1", "gdn-1", "mixed-1");
  if (has_device()) { check_model(model); }
}

TEST_CASE("steps of other layers wait for the device once, ask for no memory, and have the same bits as graphs",
          "[slow]") {
  const std::string model = GENERATE(as<std::string>(), "mamba2-1", "mesanet-1", "lact-1", "ham-1", "sdm-1", "pkm-1",
                                     "ovq-1", "vq-1", "vq-2", "kvm-1", "fwpkm-1", "fwmlp-1");
  if (has_device()) { check_model(model); }
}

FOLDER_TEST("graphs give the same bits where activations are computed again, and with random windows", "[slow]") {
  if (!has_device()) { return; }
  const std::string changes =
      GENERATE(as<std::string>(), R"({"train": {"recompute": "block"}})", R"({"train": {"recompute": "mixer"}})",
               R"({"train": {"random_window": {"p": 0.5, "window": 4}, "precision": "bf16"}})");
  CAPTURE(changes);
  const Outcome single = run_steps(folder / "single", small_run(folder, "mixed-1", 6, false, changes));
  const Outcome graphs = run_steps(folder / "graphs", small_run(folder, "mixed-1", 6, true, changes));
  CHECK(graphs.metrics == single.metrics);
  CHECK(graphs.weights == single.weights);
  CHECK(graphs.counts.graphs > 6);
}

TEST_CASE("a benchmark launches its steps as graphs, as a run does") {
  if (!has_device()) { return; }
  const cuda::DeviceCounts before = cuda::device_counts();
  const fs::path model = fs::path(test_data_path()) / "golden" / "gdn-1" / "model.json";
  const ModelSpeed speed = measure_model(read_model_config(model), {DeviceKind::cuda, DType::f32},
                                         {.rows = 2, .length = 13, .warmup = 1, .steps = 3, .autotune = false});
  CHECK(cuda::device_counts().graphs - before.graphs == 5 + 5);  // of 6 steps, two of them apart; the first is recorded
  CHECK(speed.best_ms <= speed.median_ms);
  CHECK(speed.forward_ms > 0);
  CHECK(speed.optimizer_ms > 0);
}

FOLDER_TEST("a step that is skipped changes nothing where it is launched as a graph either") {
  if (!has_device()) { return; }
  const auto run = [&](bool graphs) {
    const fs::path path = folder / (graphs ? "graphs" : "single");
    Heard heard;
    Trainer* running = nullptr;
    heard.on_line = break_weight(running, 4);
    Trainer trainer(small_run(folder, "ham-1", 10, graphs, kLearnedThreshold), {.run_folder = path}, {},
                    heard.console(), "test");
    running = &trainer;
    REQUIRE(trainer.run() == 0);
    CHECK(heard.count("skipped:") == 1);
    CHECK(metric(path, "skipped").back() == 1);
    CHECK(updates_of(path, 10, "final_norm.weight") == 9);
    CHECK(updates_of(path, 10, "blocks.0.mixer.threshold") == 9);
    return tensor_bytes(path, 10);
  };
  CHECK(run(true) == run(false));
}

FOLDER_TEST("a run that is resumed with graphs has the bits of one without") {
  if (!has_device()) { return; }
  const Outcome whole =
      run_steps(folder / "whole", small_run(folder, "gdn-1", 8, false, R"({"train": {"log_every": 4}})"));
  run_steps(folder / "parts", small_run(folder, "gdn-1", 4, true, R"({"train": {"log_every": 4}})"));
  const Outcome parts =
      run_steps(folder / "parts", small_run(folder, "gdn-1", 8, true, R"({"train": {"log_every": 4}})"));
  CHECK(parts.metrics == whole.metrics);
  CHECK(parts.weights == whole.weights);
  CHECK(parts.counts.graphs > 0);
}

FOLDER_TEST("with a document mask launches stay single, and the report says why") {
  if (!has_device()) { return; }
  Heard heard;
  const Outcome masked = run_steps(
      folder / "run", small_run(folder, "attention-1", 3, true, R"({"train": {"document_mask": true}})"), heard);
  CHECK(masked.counts.graphs == 0);
  CHECK(heard.has("launches: one by one"));
  CHECK(heard.has("train.document_mask"));
}
