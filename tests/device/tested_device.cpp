#include "tests/train/tested_device.h"

#include "tests/device/device.h"

namespace hebb::testing {

std::optional<DeviceKind> tested_device() {
  if (!has_device()) { return std::nullopt; }
  return DeviceKind::cuda;
}

}  // namespace hebb::testing
