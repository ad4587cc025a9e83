#include "kernels/add/add.h"
#include "kernels/common/cuda/prelude.cuh"

// Elementwise kernels over flat arrays, bound by HBM: the bytes of their operands.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256;

// y = alpha x (+ y)
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_scaled_kernel(T* y, const T* x, float alpha, bool accumulate, int64_t count, bool vector) {
  constexpr int N = kPack<T>;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  float a[N] = {}, b[N];
  if (accumulate) { load_pack(a, y, at, count, vector); }
  load_pack(b, x, at, count, vector);
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) { a[j] += alpha * b[j]; }
  store_pack(y, at, count, vector, a);
}

// Eight elements a thread: one pack of bf16, two of fp32.
template <class To, class From>
__global__ void __launch_bounds__(kThreads) convert_kernel(To* to, const From* from, int64_t count, bool vector) {
  constexpr int N = kPack<bf16>;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  float value[N];
  load_pack(value, from, at, count, vector);
  store_pack(to, at, count, vector, value);
}

// To and from fp64, which only small parts of models take.
template <class To, class From> struct Cast {
  To* to;
  const From* from;
  __device__ void operator()(int64_t, int64_t i) const { to[i] = static_cast<To>(from[i]); }
};

}  // namespace

void run(Stream& stream, const AddScaled& args) {
  const int64_t count = args.y.numel();
  if (count == 0) { return; }
  dispatch_float(args.y.dtype, [&]<class T>(T) {
    const int64_t packs = (count + kPack<T> - 1) / kPack<T>;
    HEBB_LAUNCH(add_scaled_kernel<T>, blocks_for(packs, kThreads), kThreads, 0, stream, args.y.as<T>(), args.x.as<T>(),
                static_cast<float>(args.alpha), args.accumulate, count,
                can_vectorise<kPack<T>>(count, args.y.data, args.x.data));
  });
}

const void* any_kernel() { return reinterpret_cast<const void*>(&convert_kernel<float, bf16>); }

void add_to(Stream& stream, const Tensor& y, const Tensor& x) {
  HEBB_DEVICE::run(stream, AddScaled{.y = y, .x = x, .alpha = 1, .accumulate = true});
}

void convert(Stream& stream, const Tensor& to, const Tensor& from) {
  const int64_t count = to.numel();
  const bool vector = can_vectorise<kPack<bf16>>(count, to.data, from.data);
  const auto launch = [&]<class To, class From>(To* out, const From* in) {
    HEBB_LAUNCH((convert_kernel<To, From>), blocks_for(count, kThreads * kPack<bf16>), kThreads, 0, stream, out, in,
                count, vector);
  };
  if (count == 0) { return; }
  if (to.dtype == DType::bf16) {
    launch(to.as<bf16>(), from.as<float>());
  } else if (from.dtype == DType::bf16) {
    launch(to.as<float>(), from.as<bf16>());
  } else if (to.dtype == DType::f64) {
    each_element("widen", stream, 1, count, Cast<double, float>{to.as<double>(), from.as<float>()});
  } else {
    each_element("narrow", stream, 1, count, Cast<float, double>{to.as<float>(), from.as<double>()});
  }
}

}  // namespace hebb::HEBB_DEVICE
