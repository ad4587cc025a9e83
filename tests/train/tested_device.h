#pragma once
#include <optional>

#include "core/stream.h"

namespace hebb::testing {

/// What the cases of bf16 run on: the CPU in test_train, a GPU or the emulator in test_device; nothing where there is
/// no GPU, and the case is skipped.
std::optional<DeviceKind> tested_device();

}  // namespace hebb::testing
