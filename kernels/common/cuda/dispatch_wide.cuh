#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// f(zero of the type `wide`, zero of the type `narrow`): both the same, or fp32 and bf16.
template <class F> void dispatch_wide(DType wide, DType narrow, F&& f) {
  dispatch_float(wide, [&]<class T>(T zero) {
    if constexpr (std::is_same_v<T, float>) {
      if (narrow == DType::bf16) {
        f(zero, bf16{});
        return;
      }
    }
    f(zero, zero);
  });
}

}  // namespace hebb::HEBB_DEVICE
