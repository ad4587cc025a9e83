// Measured choices of matrix products in runs of the device "cuda" (a GPU, or the SIMT emulator, where there is one
// algorithm to choose from).
#include "train/autotune.h"

#include "tests/device/device_run.h"

FOLDER_TEST("a run measures its matrix products once, keeps the choices, and computes the same without") {
  if (!has_device()) { return; }
  const auto run = [](bool autotune, int steps) {
    return device_run(
        fmt::format(R"({{"train": {{"steps": {}, "precision": "bf16", "autotune": {}}}}})", steps, autotune));
  };
  const fs::path file = folder / "with" / kTunedFile;
  Heard first, again, without;
  CHECK(run_in(folder / "with", run(true, 2), first) == 0);
  CHECK(first.count("autotune: ") == 1);
  CHECK_FALSE(first.has("measured before"));
  const size_t products = tuned_products(read_file(file), "file").products.size();
  CHECK(products > 10);
  CHECK(run_in(folder / "with", run(true, 3), again) == 0);
  CHECK(again.has("autotune: " + std::to_string(products) + " products (" + std::to_string(products) +
                  " measured before), "));
  CHECK(run_in(folder / "without", run(false, 2), without) == 0);
  CHECK_FALSE(without.has("autotune: "));
  CHECK_FALSE(fs::exists(folder / "without" / kTunedFile));
  CHECK(read_file(checkpoint_in(folder / "with", 2) / "model.safetensors") ==
        read_file(checkpoint_in(folder / "without", 2) / "model.safetensors"));
}
