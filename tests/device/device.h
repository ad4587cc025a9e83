#pragma once
// What tests of the device "cuda" share.
#include "core/cuda_device.h"
#include "tests/skip.h"
#include "tests/test.h"

namespace hebb::testing {

/// Whether there is one; else the case is skipped.
inline bool has_device() {
  if (cuda::device_count() > 0) { return true; }
  skip_case("no usable GPU");
  return false;
}

}  // namespace hebb::testing
