// Checkpoints of the device "cuda" (a GPU, or the SIMT emulator).
#include "train/checkpoint.h"

#include <cstring>
#include <numeric>

#include "core/arena.h"
#include "core/safetensors.h"
#include "tests/device/device_run.h"

FOLDER_TEST("tensors come from the device through one buffer and are written as they come") {
  if (!has_device()) { return; }
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

FOLDER_TEST("a run on the device goes on from its checkpoint with the bits of one that was not stopped") {
  if (!has_device()) { return; }
  REQUIRE(run_in(folder / "whole", device_run("{}")) == 0);
  REQUIRE(run_in(folder / "parts", device_run(R"({"train": {"steps": 2}})")) == 0);
  REQUIRE(run_in(folder / "parts", device_run("{}")) == 0);  // goes on
  CHECK(tensor_bytes(folder / "whole", 3) == tensor_bytes(folder / "parts", 3));
  CHECK(verify_checkpoint(checkpoint_in(folder / "whole", 3)).step == 3);
}
