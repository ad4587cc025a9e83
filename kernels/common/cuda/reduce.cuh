#pragma once
// Part of prelude.cuh: reductions over a warp or block in a fixed order, hence the same bits in every run.

namespace hebb::HEBB_DEVICE {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// The sum over each kLanes neighbouring lanes, in every lane, by a butterfly. All lanes of the warp call.
template <int kLanes = 32, class T> __device__ __forceinline__ T warp_sum(T value) {
  HEBB_UNROLL
  for (int bits = kLanes / 2; bits > 0; bits /= 2) { value += __shfl_xor_sync(kAllLanes, value, bits); }
  return value;
}

/// The sum of f(i) over i < count by one warp, in every lane.
template <class F> __device__ __forceinline__ auto warp_sum_of(int64_t count, int lane, F&& f) {
  decltype(f(count)) sum = 0;
  for (int64_t i = lane; i < count; i += 32) { sum += f(i); }
  return warp_sum(sum);
}

/// The sum over a group of `lanes` neighbouring lanes, a power of two, the first a multiple of it; in every lane of the
/// group, by a butterfly. The warp's other groups need not take part.
__device__ __forceinline__ float group_sum(float value, int lanes) {
  const unsigned first = threadIdx.x % 32 / static_cast<unsigned>(lanes) * static_cast<unsigned>(lanes);
  const unsigned mask = lanes == 32 ? kAllLanes : ((1u << lanes) - 1u) << first;
  for (int bits = lanes / 2; bits > 0; bits /= 2) { value += __shfl_xor_sync(mask, value, bits); }
  return value;
}

/// The maximum, as warp_sum.
template <int kLanes = 32, class T> __device__ __forceinline__ T warp_max(T value) {
  HEBB_UNROLL
  for (int bits = kLanes / 2; bits > 0; bits /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, bits);
    if constexpr (std::is_same_v<T, float>) {
      value = fmaxf(value, other);
    } else {
      value = other > value ? other : value;
    }
  }
  return value;
}

/// Reductions over a one-dimensional block; the result is in every thread. At most one object per kernel and type T: it
/// alternates between two buffers, so that one barrier per reduction is enough. All threads must call.
template <class T> class BlockReducer {
 public:
  template <int K> __device__ __forceinline__ void sum(T (&values)[K]) {
    static_assert(K <= kMaxValues);
    HEBB_UNROLL
    for (int k = 0; k < K; ++k) { values[k] = warp_sum(values[k]); }
    if (blockDim.x == 32) { return; }
    HEBB_SHARED(Buffers, buffers);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    T(&buffer)[kMaxValues][32] = buffers.value[slot_];
    slot_ ^= 1;
    if (lane == 0) {
      HEBB_UNROLL
      for (int k = 0; k < K; ++k) { buffer[k][warp] = values[k]; }
    }
    __syncthreads();
    HEBB_UNROLL
    for (int k = 0; k < K; ++k) { values[k] = warp_sum(lane < warps ? buffer[k][lane] : T(0)); }
  }

  __device__ __forceinline__ T sum(T value) {
    T values[1] = {value};
    sum(values);
    return values[0];
  }

  __device__ __forceinline__ float max(float value) {
    value = warp_max(value);
    if (blockDim.x == 32) { return value; }
    HEBB_SHARED(Buffers, maxima);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    T(&buffer)[32] = maxima.value[slot_][0];
    slot_ ^= 1;
    if (lane == 0) { buffer[warp] = value; }
    __syncthreads();
    return warp_max(lane < warps ? buffer[lane] : -INFINITY);
  }

 private:
  static constexpr int kMaxValues = 2;
  struct Buffers {
    T value[2][kMaxValues][32];
  };
  int slot_ = 0;
};

}  // namespace hebb::HEBB_DEVICE
