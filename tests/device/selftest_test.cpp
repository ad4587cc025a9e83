// hebb selftest on the device "cuda" (a GPU, or the SIMT emulator).
#include "inspect/selftest.h"
#include "tests/device/device.h"

TEST_CASE("the self-test passes in both number formats of a GPU") {
  if (!testing::has_device()) { return; }
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::string& name : selftest_names()) {
      CAPTURE(name);
      CHECK(selftest(name, {DeviceKind::cuda, dtype}).failure == "");
    }
  }
}
