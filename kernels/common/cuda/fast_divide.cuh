#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// Quotient and remainder of numbers in [0, 2^31), such as entries that i32 counts: 64-bit division takes a hundred
/// instructions and a call, which spills registers.
struct Split {
  int64_t quotient, remainder;

  __device__ __forceinline__ Split(int64_t a, int64_t b) {
    const auto x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
    quotient = x / y;
    remainder = x % y;
  }
};

}  // namespace hebb::HEBB_DEVICE
