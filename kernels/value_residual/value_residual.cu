#include "kernels/value_residual/value_residual.h"

#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/value_residual/scratch.h"

// Bound by HBM: 3 or 4 passes forward, up to 7 backward.
namespace hebb::HEBB_DEVICE {
namespace {

/// The mixing weights of a pack of channels: sigmoids of activations, or parameters of the channels.
template <class T> struct Mix {
  const void* data;
  bool gated;

  template <int N>
  __device__ __forceinline__ void load(int64_t row, int64_t c, int64_t channels, float (&lambda)[N]) const {
    if (!gated) {
      load_pack(lambda, static_cast<const float*>(data), c, channels, N > 1);
      return;
    }
    load_pack(lambda, static_cast<const T*>(data) + row, c, channels, N > 1);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { lambda[j] = sigmoid(lambda[j]); }
  }
};

template <class T, int N> struct ValueResidualForwardBody {
  T* y;
  const T *v, *first;
  Mix<T> mix;
  int64_t channels;

  __device__ void operator()(int64_t token, int64_t pack) const {
    const int64_t row = token * channels, c = pack * N;
    float x[N], other[N], lambda[N];
    load_pack(x, v + row, c, channels, N > 1);
    load_pack(other, first + row, c, channels, N > 1);
    mix.load(row, c, channels, lambda);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { x[j] += lambda[j] * (other[j] - x[j]); }
    store_pack(y + row, c, channels, N > 1, x);
  }
};

// A thread goes over the tokens of a block in a pack of channels.
template <class T, int N> struct ValueResidualBackwardBody {
  T *d_v, *d_first, *d_mix;  // d_mix: of the gates
  float* partial;
  const T *d_y, *v, *first;
  Mix<T> mix;
  int64_t tokens, channels;
  bool accumulate_v, accumulate_first, accumulate_mix;

  __device__ void operator()(int64_t block, int64_t pack) const {
    const int64_t c = pack * N, end = ValueResidualBlocks::end(block, tokens);
    float sum[N] = {};
    for (int64_t token = ValueResidualBlocks::begin(block); token < end; ++token) {
      const int64_t row = token * channels;
      float g[N], lambda[N], x[N], other[N], out[N];
      load_pack(g, d_y + row, c, channels, N > 1);
      load_pack(x, v + row, c, channels, N > 1);
      load_pack(other, first + row, c, channels, N > 1);
      mix.load(row, c, channels, lambda);
      const auto put = [&](T* to, bool accumulate, auto&& value) {
        if (to != nullptr) {
          HEBB_UNROLL
          for (int j = 0; j < N; ++j) { out[j] = value(j); }
          write_pack(to + row, c, channels, N > 1, out, accumulate);
        }
      };
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        x[j] = g[j] * (other[j] - x[j]);  // d_lambda
        sum[j] += x[j];
      }
      put(d_v, accumulate_v, [&](int j) { return (1.0f - lambda[j]) * g[j]; });
      put(d_first, accumulate_first, [&](int j) { return lambda[j] * g[j]; });
      put(d_mix, accumulate_mix, [&](int j) { return x[j] * lambda[j] * (1.0f - lambda[j]); });
    }
    if (partial != nullptr) { store_pack(partial + block * channels, c, channels, N > 1, sum); }
  }
};

}  // namespace

void run(Stream& stream, const ValueResidualForward& a) {
  const int64_t tokens = a.v.size(0), channels = a.v.size(1);
  dispatch_float(a.v.dtype, [&]<class T>(T) {
    dispatch_pack<T>(channels, {a.y.data, a.v.data, a.first.data, a.mix.data}, [&](auto pack) {
      each_element("value_residual_forward", stream, tokens, channels / pack(),
                   ValueResidualForwardBody<T, pack()>{
                       a.y.as<T>(), a.v.as<T>(), a.first.as<T>(), {a.mix.data, a.gated}, channels});
    });
  });
}

void run(Stream& stream, const ValueResidualBackward& a, const ValueResidualBackwardScratch& scratch) {
  const int64_t tokens = a.v.size(0), channels = a.v.size(1), blocks = ValueResidualBlocks::count(tokens);
  const Tensor& partial = scratch.partial;
  dispatch_float(a.v.dtype, [&]<class T>(T) {
    T* const d_gate = a.gated ? a.d_mix.as<T>() : nullptr;
    dispatch_pack<T>(channels,
                     {a.d_v.data, a.d_first.data, d_gate, partial.data, a.d_y.data, a.v.data, a.first.data, a.mix.data},
                     [&](auto pack) {
                       each_element("value_residual_backward", stream, blocks, channels / pack(),
                                    ValueResidualBackwardBody<T, pack()>{.d_v = a.d_v.as<T>(),
                                                                         .d_first = a.d_first.as<T>(),
                                                                         .d_mix = d_gate,
                                                                         .partial = partial.as<float>(),
                                                                         .d_y = a.d_y.as<T>(),
                                                                         .v = a.v.as<T>(),
                                                                         .first = a.first.as<T>(),
                                                                         .mix = {a.mix.data, a.gated},
                                                                         .tokens = tokens,
                                                                         .channels = channels,
                                                                         .accumulate_v = a.accumulate_v,
                                                                         .accumulate_first = a.accumulate_first,
                                                                         .accumulate_mix = a.accumulate_mix});
                     });
  });
  if (!a.gated) { add_column_sums(stream, a.d_mix, partial, blocks); }
}

}  // namespace hebb::HEBB_DEVICE
