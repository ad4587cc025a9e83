// The same training run on the device "cuda" and on the CPU.
#include <cmath>

#include "tests/device/device.h"
#include "tests/paths.h"
#include "tests/train/run_fixture.h"

FOLDER_TEST("200 steps of the quickstart's model in fp32 have the same losses on a GPU and on the CPU") {
  if (!has_device()) { return; }
  const auto run = [&](const std::string& device) {
    Json json = parse_json_file(std::string(HEBB_SOURCE) + "/configs/quickstart.json");
    json.erase("data");
    // Its blocks, smaller: the emulator runs every thread of a kernel. Rows of 20 tokens are longer than the windows.
    // At the quickstart's rate of 3e-3 batches this small are chaotic: the CPU in fp32 and in fp64 part by 1e-2 within
    // 200 steps.
    merge_json(json, parse_json(R"({
      "model": {"vocab_size": 40, "hidden_size": 24, "layers": {
        "gdn": {"num_heads": 2, "key_head_dim": 12, "value_head_dim": 12}, "swa": {"num_heads": 2, "head_dim": 12, "window": 8},
        "mlp": {"intermediate_size": 64}}},
      "data": {"sources": [{"type": "synthetic", "task": "mqar", "vocab": 40, "pairs": 2, "seed": 1}]},
      "train": {"steps": 200, "batch_size": 2, "micro_batch_size": 1, "sequence_length": 20, "log_every": 1, "checkpoint": {"every": 1000}},
      "optimizer": {"lr": 1e-3}})",
                                "changes"));
    json.find("train")->erase("val_every");
    json.find("train")->set("device", Json(device));
    REQUIRE(run_in(folder / device, resolved_run(json)) == 0);
    return metric(folder / device, "loss");
  };
  const std::vector<double> cpu = run("cpu"), gpu = run("cuda");
  REQUIRE(cpu.size() == 200);
  REQUIRE(gpu.size() == 200);
  CHECK(cpu.front() - cpu.back() > 0.3);  // it learns: the weights that are compared have moved
  for (size_t i = 0; i < cpu.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(std::abs(cpu[i] - gpu[i]) < 1e-3);  // sums in another order, 1e-7 each, and what 200 steps make of it
  }
}
