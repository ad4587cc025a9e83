#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// Sum of the values of the warp's lanes up to this one.
template <class T> __device__ __forceinline__ T warp_scan(T sum, int lane) {
  HEBB_UNROLL
  for (int delta = 1; delta < 32; delta *= 2) {
    const T other = __shfl_up_sync(kAllLanes, sum, delta);
    sum += lane >= delta ? other : T(0);
  }
  return sum;
}

/// Sum of the values of the threads before this one; `total` becomes the sum of all. One-dimensional blocks; all
/// threads call.
__device__ __forceinline__ int block_scan(int value, int& total) {
  HEBB_SHARED(int[32], warp_sums);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int sum = warp_scan(value, lane);
  if (lane == 31) { warp_sums[warp] = sum; }
  __syncthreads();
  const int own = lane < static_cast<int>(blockDim.x / 32) ? warp_sums[lane] : 0;
  const int warps = warp_scan(own, lane);  // in every warp alike
  total = __shfl_sync(kAllLanes, warps, 31);
  const int before = __shfl_sync(kAllLanes, warps, warp > 0 ? warp - 1 : 0);
  __syncthreads();  // warp_sums is written again
  return (warp > 0 ? before : 0) + sum - value;
}

}  // namespace hebb::HEBB_DEVICE
