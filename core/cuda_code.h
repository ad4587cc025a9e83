#pragma once
#include <string>

#include "core/cuda_device.h"

namespace hebb::HEBB_DEVICE {

/// That the driver compiles this build's code for the GPU of this thread, with the remedy; empty where the build has
/// machine code for it.
std::string code_note();

}  // namespace hebb::HEBB_DEVICE
