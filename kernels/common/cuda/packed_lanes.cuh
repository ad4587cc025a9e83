#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// f(first element) for the packs of N elements that a lane has of a row of `size` elements, which `lanes` lanes share.
template <int N, class F> __device__ __forceinline__ void each_pack(int64_t size, int lanes, int lane, F&& f) {
  for (int64_t at = lane * N; at < size; at += lanes * N) { f(at); }
}

}  // namespace hebb::HEBB_DEVICE
