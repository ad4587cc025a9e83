#include "kernels/short_conv.h"

#include "kernels/cuda/common/column_sums.h"

// Bound by HBM: x in, y out forward; d_y and x in, d_x out backward. A thread holds one element; the taps before it come from L1, as
// do, backward, the 2 K - 1 inputs that its gradient depends on (z is computed K times, K^2 multiply-adds an element).
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kBlock = 64;  // tokens of one partial sum, as in short_conv_blocks

template <class T>
struct Convolution {
  const T *x, *previous;
  const float *weight, *bias;
  const int32_t* doc_start;
  int64_t length, channels;
  int taps;

  /// Taps of a token that lie in its document, and in the row unless inputs are carried.
  __device__ int available(int64_t token) const {
    const int64_t t = token % length, inside = t - doc_start[token] + 1, in_row = previous != nullptr ? inside : t + 1;
    const int64_t all = inside < in_row ? inside : in_row;
    return static_cast<int>(all < taps ? all : taps);
  }
  __device__ float factor(int tap, int64_t c) const { return weight != nullptr ? weight[c * taps + taps - 1 - tap] : 1.0f; }
  __device__ float input(int64_t token, int tap, int64_t c) const {
    const int64_t t = token % length;
    if (tap <= t) {
      return to_float(x[(token - tap) * channels + c]);
    }
    const int64_t row = token / length;
    return to_float(previous[((row + 1) * (taps - 1) - (tap - t)) * channels + c]);
  }
  __device__ float operator()(int64_t token, int64_t c) const {
    float z = bias != nullptr ? bias[c] : 0.0f;
    for (int tap = 0; tap < available(token); ++tap) {
      z += factor(tap, c) * input(token, tap, c);
    }
    return z;
  }
};

template <class T>
struct Forward {
  T* y;
  Convolution<T> convolution;
  bool silu;

  __device__ void operator()(int64_t token, int64_t c) const {
    const float z = convolution(token, c);
    y[token * convolution.channels + c] = from_float<T>(silu ? z * sigmoid(z) : z);
  }
};

template <class T>
struct OutputGradient {
  const T* d_y;
  Convolution<T> convolution;
  bool silu;

  __device__ float operator()(int64_t token, int64_t c) const {
    const float d = to_float(d_y[token * convolution.channels + c]);
    if (!silu) {
      return d;
    }
    const float z = convolution(token, c), s = sigmoid(z);
    return d * s * (1.0f + z * (1.0f - s));
  }
};

template <class T>
struct InputGradient {
  T* d_x;
  OutputGradient<T> d_z;
  bool accumulate;

  __device__ void operator()(int64_t token, int64_t c) const {
    const Convolution<T>& convolution = d_z.convolution;
    const int64_t t = token % convolution.length;
    float sum = 0;
    for (int tap = 0; tap < convolution.taps && t + tap < convolution.length; ++tap) {
      if (convolution.doc_start[token + tap] > t) {
        break;
      }
      sum += convolution.factor(tap, c) * d_z(token + tap, c);
    }
    write(d_x[token * convolution.channels + c], sum, accumulate);
  }
};

// Item: (block of tokens, tap), the tap behind the last being the bias.
template <class T>
struct WeightGradient {
  float* partial;
  OutputGradient<T> d_z;
  int64_t blocks_per_row;

  __device__ void operator()(int64_t item, int64_t c) const {
    const Convolution<T>& convolution = d_z.convolution;
    const int64_t block = item / (convolution.taps + 1), row = block / blocks_per_row;
    const int tap = static_cast<int>(item % (convolution.taps + 1));
    const int64_t first = block % blocks_per_row * kBlock;
    const int64_t last = first + kBlock < convolution.length ? first + kBlock : convolution.length;
    float sum = 0;
    for (int64_t token = row * convolution.length + first; token < row * convolution.length + last; ++token) {
      if (tap == convolution.taps) {
        sum += d_z(token, c);
      } else if (tap < convolution.available(token)) {
        sum += d_z(token, c) * convolution.input(token, tap, c);
      }
    }
    partial[item * convolution.channels + c] = sum;
  }
};

template <class T, class Args>
Convolution<T> convolution_of(const Args& a, const Tensor& previous) {
  return {.x = a.x.template as<T>(), .previous = previous.as<T>(), .weight = a.weight.template as<float>(),
          .bias = a.bias.template as<float>(), .doc_start = a.doc_start.template as<int32_t>(), .length = a.x.size(1),
          .channels = a.x.size(2), .taps = a.weight.defined() ? static_cast<int>(a.weight.size(1)) : 1};
}

template <class T>
void backward(Stream& stream, const ShortConvBackward& a) {
  const int64_t rows = a.x.size(0), length = a.x.size(1), channels = a.x.size(2);
  const OutputGradient<T> d_z{a.d_y.as<T>(), convolution_of<T>(a, {}), a.silu};
  if (a.d_weight.defined() || a.d_bias.defined()) {
    const int64_t blocks = short_conv_blocks(rows, length), taps = d_z.convolution.taps, stride = (taps + 1) * channels;
    float* const partial = a.partial.as<float>();
    each_element("short_conv_weights", stream, blocks * (taps + 1), channels, WeightGradient<T>{partial, d_z, blocks / rows});
    for (int64_t tap = 0; a.d_weight.defined() && tap < taps; ++tap) {
      add_column_sums(stream, a.d_weight.as<float>() + taps - 1 - tap, taps,
                      {partial + tap * channels, DType::f32, blocks, stride, channels});
    }
    if (a.d_bias.defined()) {
      add_column_sums(stream, a.d_bias.as<float>(), 1, {partial + taps * channels, DType::f32, blocks, stride, channels});
    }
  }
  if (a.d_x.defined()) {  // last: it may be d_y
    each_element("short_conv_backward", stream, rows * length, channels, InputGradient<T>{a.d_x.as<T>(), d_z, a.accumulate});
  }
}

/// A thread moves one channel of one row, oldest first: what it overwrites was read before.
template <class T>
struct Shift {
  T* previous;
  const T* x;
  int64_t kept, length, channels;

  __device__ void operator()(int64_t row, int64_t c) const {
    T* const to = previous + row * kept * channels + c;
    const T* const from = x + row * length * channels + c;
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t at = i + length - kept;  // in x
      to[i * channels] = at < 0 ? to[(i + length) * channels] : from[at * channels];
    }
  }
};

}  // namespace

void run(Stream& stream, const ShortConvForward& a) {
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("short_conv_forward", stream, a.x.size(0) * a.x.size(1), a.x.size(2),
                 Forward<T>{a.y.as<T>(), convolution_of<T>(a, a.previous), a.silu});
  });
}

void run(Stream& stream, const ShortConvBackward& a) {
  if (a.x.numel() > 0) {
    dispatch_float(a.x.dtype, [&](auto zero) { backward<decltype(zero)>(stream, a); });
  }
}

void run(Stream& stream, const ShortConvShift& a) {
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("short_conv_shift", stream, a.x.size(0), a.x.size(2),
                 Shift<T>{a.previous.as<T>(), a.x.as<T>(), a.previous.size(1), a.x.size(1), a.x.size(2)});
  });
}

}  // namespace hebb::HEBB_DEVICE
