// Checkpoints of the device "cuda" (a GPU, or the SIMT emulator).
#include "train/checkpoint.h"

#include <cstring>
#include <numeric>

#include "core/arena.h"
#include "core/safetensors.h"
#include "tests/device/device.h"
#include "tests/train/run_fixture.h"

namespace {

RunConfig device_run(int64_t steps) {
  Json json = parse_json(R"({"name": "checkpoints",
    "model": {"vocab_size": 31, "hidden_size": 24, "num_layers": 2,
      "layers": {"att": {"type": "attention", "num_heads": 2, "head_dim": 8, "rope": {"theta": 100.0}},
                 "mlp": {"type": "swiglu", "intermediate_size": 40}},
      "pattern": [{"mixer": "att", "ffn": "mlp"}]},
    "data": {"sources": [{"type": "synthetic", "task": "mqar", "seed": 1, "vocab": 31, "pairs": 3}]},
    "train": {"batch_size": 4, "sequence_length": 16, "device": "cuda", "precision": "fp32"},
    "schedule": {"type": "constant"},
    "optimizer": {"lr": 0.01}})",
                         "checkpoints.json");
  json.find("train")->set("steps", Json(steps));
  auto config = Fields::read<RunConfig>(json, "");
  resolve(config);
  return config;
}

}  // namespace

TEST_CASE("tensors come from the device through one buffer and are written as they come") {
  if (!has_device()) { return; }
  const TempFolder folder;
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.5f);
  Stream stream{DeviceKind::cuda};
  Arena arena(DeviceKind::cuda);
  const Buffer on_device(arena, {1000}, DType::f32, "w");
  copy_to_device(stream, on_device, values.data());
  DeviceReader reader(stream, 256);
  std::vector<const void*> places;
  size_t taken = 0;
  reader.read(on_device, [&](const void* bytes, size_t size) {
    places.push_back(bytes);
    CHECK(std::memcmp(bytes, reinterpret_cast<const char*>(values.data()) + taken, size) == 0);
    taken += size;
  });
  CHECK(places == std::vector<const void*>(16, places[0]));  // 4,000 bytes, 256 at a time
  CHECK(taken == 4000);
  const uint32_t crc = write_safetensors(folder / "device", {{"w", on_device, true}}, {}, &reader);
  CHECK(crc == write_safetensors(folder / "host", {{"w", {values.data(), DType::f32, {1000}}}}));
  CHECK(read_file(folder / "device") == read_file(folder / "host"));
}

TEST_CASE("a run on the device goes on from its checkpoint with the bits of one that was not stopped") {
  if (!has_device()) { return; }
  const TempFolder folder;
  REQUIRE(run_in(folder / "whole", device_run(3)) == 0);
  REQUIRE(run_in(folder / "parts", device_run(2)) == 0);
  REQUIRE(run_in(folder / "parts", device_run(3)) == 0);  // goes on
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path name = fs::path("checkpoints") / CheckpointFolder::name_of(3) / file;
    CHECK(read_file(folder / "whole" / name) == read_file(folder / "parts" / name));
  }
  CHECK(verify_checkpoint(folder / "whole" / "checkpoints" / CheckpointFolder::name_of(3)).step == 3);
}
