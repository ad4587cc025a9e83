#include "kernels/activation/activation.h"

#include "kernels/common/cuda/prelude.cuh"

// Elementwise kernels over flat arrays: a thread takes one 16-byte pack. Bound by HBM: the bytes of their operands.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256;

template <class T> __device__ __forceinline__ int64_t flat_begin() {
  return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPack<T>;
}

template <class T, bool kVector>
__global__ void swiglu_forward_kernel(T* y, const T* gate, const T* up, int64_t count) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float g[N], u[N];
  load_pack(g, gate, at, count, kVector);
  load_pack(u, up, at, count, kVector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) { g[j] = g[j] * sigmoid(g[j]) * u[j]; }
  store_pack(y, at, count, kVector, g);
}

template <class T, bool kVector>
__global__ void swiglu_backward_kernel(T* d_gate, T* d_up, const T* d_y, const T* gate, const T* up, int64_t count) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float d[N], g[N], u[N];
  load_pack(d, d_y, at, count, kVector);
  load_pack(g, gate, at, count, kVector);
  load_pack(u, up, at, count, kVector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) {
    const float s = sigmoid(g[j]), silu = g[j] * s;
    g[j] = d[j] * u[j] * (s + silu * (1.0f - s));
    d[j] *= silu;
  }
  store_pack(d_gate, at, count, kVector, g);
  store_pack(d_up, at, count, kVector, d);
}

template <class T, bool kVector> __global__ void relu2_forward_kernel(T* y, const T* x, int64_t count) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float v[N];
  load_pack(v, x, at, count, kVector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) {
    const float positive = v[j] > 0.0f ? v[j] : 0.0f;
    v[j] = positive * positive;
  }
  store_pack(y, at, count, kVector, v);
}

template <class T, bool kVector>
__global__ void relu2_backward_kernel(T* d_x, const T* d_y, const T* x, int64_t count) {
  constexpr int N = kPack<T>;
  const int64_t at = flat_begin<T>();
  float d[N], v[N];
  load_pack(d, d_y, at, count, kVector);
  load_pack(v, x, at, count, kVector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) { d[j] *= 2.0f * (v[j] > 0.0f ? v[j] : 0.0f); }
  store_pack(d_x, at, count, kVector, d);
}

/// Launches kernel_of(whether there are only whole packs, as a constant)(pointers..., count) over `count` elements of
/// T.
template <class T, class KernelOf, class... Pointers>
void launch_flat(const char* name, KernelOf kernel_of, Stream& stream, int64_t count, Pointers... pointers) {
  if (count == 0) { return; }
  const int64_t packs = (count + kPack<T> - 1) / kPack<T>;
  dispatch_flag(can_vectorise<kPack<T>>(count, pointers...), [&](auto vector) {
    launch(name, kernel_of(vector), blocks_for(packs, kThreads), kThreads, 0, stream, pointers..., count);
  });
}

}  // namespace

void run(Stream& stream, const SwigluForward& a) {
  dispatch_float(a.y.dtype, [&]<class T>(T) {
    const auto kernel = [](auto vector) { return swiglu_forward_kernel<T, vector()>; };
    launch_flat<T>("swiglu_forward", kernel, stream, a.y.numel(), a.y.as<T>(), a.gate.as<T>(), a.up.as<T>());
  });
}

void run(Stream& stream, const SwigluBackward& a) {
  dispatch_float(a.d_y.dtype, [&]<class T>(T) {
    const auto kernel = [](auto vector) { return swiglu_backward_kernel<T, vector()>; };
    launch_flat<T>("swiglu_backward", kernel, stream, a.d_y.numel(), a.d_gate.as<T>(), a.d_up.as<T>(), a.d_y.as<T>(),
                   a.gate.as<T>(), a.up.as<T>());
  });
}

void run(Stream& stream, const Relu2Forward& a) {
  dispatch_float(a.y.dtype, [&]<class T>(T) {
    const auto kernel = [](auto vector) { return relu2_forward_kernel<T, vector()>; };
    launch_flat<T>("relu2_forward", kernel, stream, a.y.numel(), a.y.as<T>(), a.x.as<T>());
  });
}

void run(Stream& stream, const Relu2Backward& a) {
  dispatch_float(a.d_y.dtype, [&]<class T>(T) {
    const auto kernel = [](auto vector) { return relu2_backward_kernel<T, vector()>; };
    launch_flat<T>("relu2_backward", kernel, stream, a.d_y.numel(), a.d_x.as<T>(), a.d_y.as<T>(), a.x.as<T>());
  });
}

}  // namespace hebb::HEBB_DEVICE
