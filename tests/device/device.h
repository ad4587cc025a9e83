#pragma once
// What tests of the device "cuda" share.
#include "core/cuda_device.h"
#include "tests/test.h"

namespace hebb::testing {

/// Whether there is one; says so where not.
inline bool has_device() {
  if (cuda::device_count() == 0) {
    WARN("no usable GPU: nothing was tested");
    return false;
  }
  return true;
}

}  // namespace hebb::testing
