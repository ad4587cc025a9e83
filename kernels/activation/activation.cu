#include "kernels/activation/activation.h"

#include "kernels/common/cuda/prelude.cuh"

// Elementwise kernels over flat arrays: a thread takes one 16-byte pack. Bound by HBM: the bytes of their operands.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256;

template <class T> __device__ __forceinline__ int64_t flat_begin() {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack<T>;
}

template <class T> __global__ void swiglu_forward_kernel(T* y, const T* gate, const T* up, int64_t count, bool vector) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float g[N], u[N];
  load_pack(g, gate, at, count, vector);
  load_pack(u, up, at, count, vector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) { g[j] = g[j] * sigmoid(g[j]) * u[j]; }
  store_pack(y, at, count, vector, g);
}

template <class T>
__global__ void swiglu_backward_kernel(T* d_gate, T* d_up, const T* d_y, const T* gate, const T* up, int64_t count,
                                       bool vector) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float d[N], g[N], u[N];
  load_pack(d, d_y, at, count, vector);
  load_pack(g, gate, at, count, vector);
  load_pack(u, up, at, count, vector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) {
    const float s = sigmoid(g[j]), silu = g[j] * s;
    g[j] = d[j] * u[j] * (s + silu * (1.0f - s));
    d[j] *= silu;
  }
  store_pack(d_gate, at, count, vector, g);
  store_pack(d_up, at, count, vector, d);
}

template <class T> __global__ void relu2_forward_kernel(T* y, const T* x, int64_t count, bool vector) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float v[N];
  load_pack(v, x, at, count, vector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) {
    const float positive = v[j] > 0.0f ? v[j] : 0.0f;
    v[j] = positive * positive;
  }
  store_pack(y, at, count, vector, v);
}

template <class T> __global__ void relu2_backward_kernel(T* d_x, const T* d_y, const T* x, int64_t count, bool vector) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float d[N], v[N];
  load_pack(d, d_y, at, count, vector);
  load_pack(v, x, at, count, vector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) { d[j] *= 2.0f * (v[j] > 0.0f ? v[j] : 0.0f); }
  store_pack(d_x, at, count, vector, d);
}

/// Launches kernel(pointers..., count, vector) over `count` elements of T.
template <class T, class Kernel, class... Pointers>
void launch_flat(const char* name, Kernel kernel, Stream& stream, int64_t count, Pointers... pointers) {
  const bool vector = can_vectorise<1>(count, pointers...);  // any count: the last pack is scalar
  const int64_t packs = (count + kPack<T> - 1) / kPack<T>;
  launch(name, kernel, blocks_for(packs, kThreads), kThreads, 0, stream, pointers..., count, vector);
}

}  // namespace

void run(Stream& stream, const SwigluForward& a) {
  if (a.y.numel() > 0) {
    dispatch_float(a.y.dtype, [&](auto zero) {
      using T = decltype(zero);
      launch_flat<T>("swiglu_forward", swiglu_forward_kernel<T>, stream, a.y.numel(), a.y.as<T>(), a.gate.as<T>(),
                     a.up.as<T>());
    });
  }
}

void run(Stream& stream, const SwigluBackward& a) {
  if (a.d_y.numel() > 0) {
    dispatch_float(a.d_y.dtype, [&](auto zero) {
      using T = decltype(zero);
      launch_flat<T>("swiglu_backward", swiglu_backward_kernel<T>, stream, a.d_y.numel(), a.d_gate.as<T>(),
                     a.d_up.as<T>(), a.d_y.as<T>(), a.gate.as<T>(), a.up.as<T>());
    });
  }
}

void run(Stream& stream, const Relu2Forward& a) {
  if (a.y.numel() > 0) {
    dispatch_float(a.y.dtype, [&](auto zero) {
      using T = decltype(zero);
      launch_flat<T>("relu2_forward", relu2_forward_kernel<T>, stream, a.y.numel(), a.y.as<T>(), a.x.as<T>());
    });
  }
}

void run(Stream& stream, const Relu2Backward& a) {
  if (a.d_y.numel() > 0) {
    dispatch_float(a.d_y.dtype, [&](auto zero) {
      using T = decltype(zero);
      launch_flat<T>("relu2_backward", relu2_backward_kernel<T>, stream, a.d_y.numel(), a.d_x.as<T>(), a.d_y.as<T>(),
                     a.x.as<T>());
    });
  }
}

}  // namespace hebb::HEBB_DEVICE
