#pragma once
// Part of prelude.cuh: conversions and small functions of device code.
#include "core/tensor.h"
#include "kernels/common/formulas.h"

namespace hebb::HEBB_DEVICE {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }

/// Round to nearest even; every NaN becomes 0x7FFF, as in the device's instruction.
__device__ __forceinline__ bf16 round_to_bf16(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#else
  const uint32_t bits = __float_as_uint(x);
  const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFu : rounded)};
#endif
}

template <class T> __device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return round_to_bf16(x);
  } else {
    return x;
  }
}

/// Two bf16 in one register, the first in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
#else
  return round_to_bf16(first).bits | static_cast<uint32_t>(round_to_bf16(second).bits) << 16;
#endif
}

/// The first i < count with f(i), which holds from some i on; `count` where it never does.
template <class I, class F> __device__ __forceinline__ I first_where(I count, F&& f) {
  I low = 0, high = count;
  while (low < high) {
    const I middle = (low + high) / 2;
    if (f(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Factor of the l2 norm from a sum of squares (docs/model.md, Norms).
__device__ __forceinline__ float l2_scale(float squares) { return 1.0f / sqrtf(squares + 1e-6f); }

/// 2^x with a relative error of 2^-22; below 2^-126 it is 0.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef HEBB_SIMT
  return exp2f(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

#ifndef HEBB_SIMT
/// sigmoid of formulas.h in half the instructions and without a branch: an exact division has one for each element, in
/// which the elements of a pack wait for each other. Within 1 ulp of it; 2^-126 where it is less; NaN stays NaN.
__device__ __forceinline__ float sigmoid(float x) {
  float divisor, inverse;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(divisor) : "f"(1.0f + exp_(-x)), "f"(0x1p126f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
  return fmaf(inverse, fmaf(-divisor, inverse, 1.0f), inverse);
}
#endif

}  // namespace hebb::HEBB_DEVICE
