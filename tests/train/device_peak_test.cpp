#include "train/device_peak.h"

#include "tests/test.h"

using namespace hebb;

TEST_CASE("dense peaks are known by device name, and unknown devices have none", "[fast]") {
  CHECK(device_peak("NVIDIA H100 80GB HBM3", "bf16") == Catch::Approx(989.4e12));
  CHECK(device_peak("NVIDIA H100 PCIe", "bf16") == 756e12);
  CHECK(device_peak("NVIDIA H200", "fp32") == Catch::Approx(66.9e12));
  CHECK(device_peak("NVIDIA A100-SXM4-80GB", "tf32") == 156e12);
  CHECK_FALSE(device_peak("GeForce", "bf16"));
}
