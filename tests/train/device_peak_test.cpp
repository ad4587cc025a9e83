#include "train/device_peak.h"

#include "tests/test.h"
#include "train/start_lines.h"

TEST_CASE("dense peaks are known by device name, and unknown devices have none", "[fast]") {
  CHECK(device_peak("NVIDIA H100 80GB HBM3", "bf16") == Approx(989.4e12));
  CHECK(device_peak("NVIDIA H100 PCIe", "bf16") == 756e12);
  CHECK(device_peak("NVIDIA H200", "fp32") == Approx(66.9e12));
  CHECK(device_peak("NVIDIA A100-SXM4-80GB", "tf32") == 156e12);
  CHECK_FALSE(device_peak("GeForce", "bf16"));
}

TEST_CASE("a GPU that is planned for has a peak in every precision", "[fast]") {
  for (const char* key : {"h100", "h200", "a100"}) {
    const PlannedGpu& gpu = planned_gpu(key);
    for (const char* precision : {"bf16", "tf32", "fp32"}) { CHECK(device_peak(gpu.name, precision)); }
    CHECK(gpu.memory_gib > 30);
    CHECK(gpu.shared_memory % 1024 == 0);
  }
  CHECK_THROWS_WITH(planned_gpu("H100"), "--gpu: found \"H100\", expected one of h100, h200, a100");
}

TEST_CASE("the product that stands in for an unknown peak fills a GPU, and is short on the CPU and in the emulator",
          "[fast]") {
  CHECK(measured_product_size("NVIDIA L40S") >= 2048);
  CHECK(measured_product_size(machine_name(DeviceKind::cpu)) == 384);
  CHECK(measured_product_size("SIMT emulator") == 384);
}
