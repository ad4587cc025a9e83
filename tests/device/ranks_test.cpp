// Ranks as threads, each with a device of its own: the SIMT emulator alone has these.
#include "comm/thread_communicator.h"
#include "core/parallel.h"
#include "tests/device/device.h"
#include "tests/train/run_fixture.h"

using namespace hebb;
using namespace hebb::testing;

namespace {

struct Split {
  int ranks = 1, zero = 0;
  bool overlap = false, graphs = false;
};

/// Steps of four micro-batches; those between the first and the last are not logged. Three buckets.
RunConfig run_of(const Split& split, int lanes, const std::string& precision) {
  Json json = parse_json(R"({"name": "ranks",
    "model": {"vocab_size": 31, "hidden_size": 24, "num_layers": 2,
      "layers": {"att": {"type": "attention", "num_heads": 2, "head_dim": 8, "rope": {"theta": 100.0}},
                 "mlp": {"type": "swiglu", "intermediate_size": 4000}},
      "pattern": [{"mixer": "att", "ffn": "mlp"}]},
    "data": {"sources": [{"type": "synthetic", "task": "mqar", "seed": 1, "vocab": 31, "pairs": 3}]},
    "train": {"steps": 6, "batch_size": 4, "micro_batch_size": 1, "sequence_length": 16, "device": "cuda",
              "threads": 1, "log_every": 1000, "checkpoint": {"every": 1000}, "comm": {"bucket_mib": 1}},
    "schedule": {"type": "constant"}, "optimizer": {"lr": 0.01, "clip_norm": 0.3}})",
                         "ranks.json");
  Json& train = *json.find("train");
  train.set("precision", Json(precision));
  train.set("lanes", Json(lanes));
  train.set("zero", Json(split.zero));
  train.set("cuda_graphs", Json(split.graphs));
  train.find("comm")->set("overlap", Json(split.overlap));
  RunConfig config;
  Fields::read(json, "", config);
  resolve(config, split.ranks);
  return config;
}

/// Runs to the end; returns weights and moments.
std::string run_split(const fs::path& folder, const Split& split, int lanes, const std::string& precision) {
  set_threads(1);
  std::vector<int64_t> graphs(static_cast<size_t>(split.ranks));
  run_ranks(split.ranks, [&](Communicator& communicator) {
    FlightLog flight;
    RunOptions options;
    options.run_folder = folder;
    Trainer trainer(run_of(split, lanes, precision), options, Ranks(communicator, flight, 1), Console{}, "test");
    if (trainer.run() != 0) { throw std::runtime_error("the run has stopped"); }
    graphs[static_cast<size_t>(communicator.rank())] = cuda::device_counts().graphs;
  });
  for (const int64_t count : graphs) { CHECK((count > 0) == split.graphs); }
  const fs::path checkpoint = checkpoint_in(folder, 6);
  return read_file(checkpoint / "model.safetensors") + read_file(checkpoint / "optimizer.safetensors");
}

}  // namespace

TEST_CASE("ranks have the bits of one rank, with overlap and graphs and without") {
  if (!has_device() || cuda::device_info().name != "SIMT emulator") { return; }
  const std::string precision = GENERATE("fp32", "bf16");
  CAPTURE(precision);
  const TempFolder folder;
  int run = 0;
  const auto check = [&](int lanes, const std::vector<Split>& splits) {
    CAPTURE(lanes);
    const std::string one = run_split(folder / std::to_string(run++), {}, lanes, precision);
    for (const Split& split : splits) {
      CAPTURE(split.zero, split.overlap, split.graphs);
      CHECK((run_split(folder / std::to_string(run++), split, lanes, precision) == one));
    }
  };
  check(2, {{2, 1, false, false}, {2, 1, true, false}, {2, 1, true, true}, {2, 0, true, true}});
  check(4, {{2, 1, true, false}});  // gradients leave at the end: values are not pushed on by them
}
