// Measured choices of matrix products in runs of the device "cuda" (a GPU, or the SIMT emulator, where there is one
// algorithm to choose from).
#include "train/autotune.h"

#include "tests/device/device.h"
#include "tests/train/run_fixture.h"

namespace {

RunConfig device_run(bool autotune) {
  Json json = parse_json(R"({"name": "products",
    "model": {"vocab_size": 31, "hidden_size": 24, "num_layers": 1,
      "layers": {"att": {"type": "attention", "num_heads": 2, "head_dim": 8, "rope": {"theta": 100.0}},
                 "mlp": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "att", "ffn": "mlp"}]},
    "data": {"sources": [{"type": "synthetic", "task": "mqar", "seed": 1, "vocab": 31, "pairs": 3}]},
    "train": {"steps": 2, "batch_size": 4, "sequence_length": 16, "device": "cuda", "precision": "bf16"},
    "schedule": {"type": "constant"}, "optimizer": {"lr": 0.01}})",
                         "products.json");
  json.find("train")->set("autotune", Json(autotune));
  auto config = Fields::read<RunConfig>(json, "");
  resolve(config);
  return config;
}

}  // namespace

TEST_CASE("a run measures its matrix products once, keeps the choices, and computes the same without") {
  if (!has_device()) { return; }
  const TempFolder folder;
  const fs::path file = folder / "with" / kTunedFile;
  Heard first, again, without;
  CHECK(run_in(folder / "with", device_run(true), first) == 0);
  CHECK(first.count("autotune: ") == 1);
  CHECK_FALSE(first.has("measured before"));
  const size_t products = tuned_products(read_file(file), "file").products.size();
  CHECK(products > 10);
  CHECK(run_in(folder / "with", device_run(true), again) == 0);
  CHECK(again.has("autotune: " + std::to_string(products) + " products (" + std::to_string(products) +
                  " measured before), "));
  CHECK(run_in(folder / "without", device_run(false), without) == 0);
  CHECK_FALSE(without.has("autotune: "));
  CHECK_FALSE(fs::exists(folder / "without" / kTunedFile));
  CHECK(read_file(checkpoint_in(folder / "with", 2) / "model.safetensors") ==
        read_file(checkpoint_in(folder / "without", 2) / "model.safetensors"));
}
