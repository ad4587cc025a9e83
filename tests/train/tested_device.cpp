#include "tests/train/tested_device.h"

namespace hebb::testing {

std::optional<DeviceKind> tested_device() { return DeviceKind::cpu; }

}  // namespace hebb::testing
