#pragma once
#include <string>

#include "core/cuda_device.h"

namespace hebb::HEBB_DEVICE {

/// Why this build has no code for the GPU of this thread, with the remedy; empty where it has. The first question about
/// a GPU takes some hundred MB of it for the process (an estimate): a CUDA context.
std::string code_problem();
/// That the driver compiles this build's code for that GPU, with the remedy; empty where the build has machine code for
/// it. Takes a context too.
std::string code_note();

}  // namespace hebb::HEBB_DEVICE
