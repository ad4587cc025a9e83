#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// Asks for the 128-byte line of an address in L2. A hint: what is read there later does not depend on it.
__device__ __forceinline__ void prefetch_line([[maybe_unused]] const void* global) {
#ifndef HEBB_SIMT
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
#endif
}

}  // namespace hebb::HEBB_DEVICE
