#include "kernels/value_residual.h"

#include "kernels/cuda/common/column_sums.h"

// Bound by HBM: 3 or 4 passes forward, up to 7 backward.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kBlock = 64;  // tokens of one partial sum, as in value_residual_blocks

/// The mixing weight: sigmoid of an activation, or a parameter of the channel.
template <class T>
struct Mix {
  const void* data;
  bool gated;

  __device__ float operator()(int64_t at, int64_t c) const {
    return gated ? sigmoid(to_float(static_cast<const T*>(data)[at])) : static_cast<const float*>(data)[c];
  }
};

template <class T>
struct Forward {
  T* y;
  const T *v, *first;
  Mix<T> mix;
  int64_t channels;

  __device__ void operator()(int64_t token, int64_t c) const {
    const int64_t at = token * channels + c;
    const float x = to_float(v[at]);
    y[at] = from_float<T>(x + mix(at, c) * (to_float(first[at]) - x));
  }
};

// A thread walks over the tokens of a block in one channel.
template <class T>
struct Backward {
  T *d_v, *d_first, *d_mix;  // d_mix: of the gates
  float* partial;
  const T *d_y, *v, *first;
  Mix<T> mix;
  int64_t tokens, channels;
  bool accumulate_v, accumulate_first, accumulate_mix;

  __device__ void operator()(int64_t block, int64_t c) const {
    const int64_t end = (block + 1) * kBlock < tokens ? (block + 1) * kBlock : tokens;
    float sum = 0;
    for (int64_t token = block * kBlock; token < end; ++token) {
      const int64_t at = token * channels + c;
      const float g = to_float(d_y[at]), lambda = mix(at, c);
      const float d_lambda = g * (to_float(first[at]) - to_float(v[at]));
      sum += d_lambda;
      if (d_v != nullptr) {
        write(d_v[at], (1.0f - lambda) * g, accumulate_v);
      }
      if (d_first != nullptr) {
        write(d_first[at], lambda * g, accumulate_first);
      }
      if (d_mix != nullptr) {
        write(d_mix[at], d_lambda * lambda * (1.0f - lambda), accumulate_mix);
      }
    }
    if (partial != nullptr) {
      partial[block * channels + c] = sum;
    }
  }
};

}  // namespace

void run(Stream& stream, const ValueResidualForward& a) {
  const int64_t tokens = a.v.size(0), channels = a.v.size(1);
  dispatch_float(a.v.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("value_residual_forward", stream, tokens, channels,
                 Forward<T>{a.y.as<T>(), a.v.as<T>(), a.first.as<T>(), {a.mix.data, a.gated}, channels});
  });
}

void run(Stream& stream, const ValueResidualBackward& a) {
  const int64_t tokens = a.v.size(0), channels = a.v.size(1), blocks = value_residual_blocks(tokens);
  const Tensor partial = a.gated ? Tensor{} : a.partial;
  dispatch_float(a.v.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("value_residual_backward", stream, blocks, channels,
                 Backward<T>{.d_v = a.d_v.as<T>(), .d_first = a.d_first.as<T>(), .d_mix = a.gated ? a.d_mix.as<T>() : nullptr,
                             .partial = partial.as<float>(), .d_y = a.d_y.as<T>(), .v = a.v.as<T>(), .first = a.first.as<T>(),
                             .mix = {a.mix.data, a.gated}, .tokens = tokens, .channels = channels, .accumulate_v = a.accumulate_v,
                             .accumulate_first = a.accumulate_first, .accumulate_mix = a.accumulate_mix});
  });
  if (!a.gated) {
    add_column_sums(stream, a.d_mix, partial, blocks);
  }
}

}  // namespace hebb::HEBB_DEVICE
