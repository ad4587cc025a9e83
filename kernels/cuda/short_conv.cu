#include "kernels/short_conv.h"

#include "kernels/cuda/common/column_sums.h"
#include "kernels/cuda/common/split.h"

// Bound by HBM: x in, y out forward; d_y and x in, d_x out backward. Filters of up to four taps: a thread walks over the tokens of a
// block in one channel, with the inputs under the filter in registers; everything is read and computed once, but for K - 1 tokens a
// block. Longer filters, and the activation alone: a thread holds one element; the taps before it come from L1, as do, backward, the
// 2 K - 1 inputs that its gradient depends on (z is computed 2 K + 1 times).
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kBlock = 64;         // tokens of one partial sum, as in short_conv_blocks
constexpr int64_t kForwardBlock = 16;  // tokens that a thread walks over
constexpr int kMaxWalk = 4;            // taps
constexpr int kAhead = 4;              // tokens whose loads are under way together

template <class T>
struct Convolution {
  const T *x, *previous;
  const float *weight, *bias;
  const int32_t* doc_start;
  int64_t length, channels;
  int taps;

  /// Taps of a token that lie in its document, and in the row unless inputs are carried.
  __device__ int available(int64_t t, int32_t start) const {
    const int64_t inside = t + 1 - (previous != nullptr || start > 0 ? start : 0);
    return static_cast<int>(inside < taps ? inside : taps);
  }
  __device__ int available(int64_t token) const { return available(token % length, doc_start[token]); }
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

/// d silu'(z).
__device__ __forceinline__ float through_silu(float d, float z) {
  const float s = sigmoid(z);
  return d * s * (1.0f + z * (1.0f - s));
}

/// What lies under a filter of kTaps taps in one channel, token after token. Tap l: of the token l before the last one.
template <class T, int kTaps>
struct Window {
  float weight[kTaps], x[kTaps], bias;

  /// Of the tokens before token t of the row.
  __device__ Window(const Convolution<T>& in, int64_t row, int64_t t, int64_t c) : bias(in.bias != nullptr ? in.bias[c] : 0.0f) {
    HEBB_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) {
      weight[tap] = in.factor(tap, c);
      const int64_t before = t - 1 - tap;
      x[tap] = 0;
      if (tap < kTaps - 1 && (before >= 0 || in.previous != nullptr)) {
        x[tap] = to_float(before >= 0 ? in.x[(row * in.length + before) * in.channels + c]
                                      : in.previous[((row + 1) * (kTaps - 1) + before) * in.channels + c]);
      }
    }
  }
  /// z of the next token.
  __device__ __forceinline__ float push(float input, int available) {
    HEBB_UNROLL
    for (int tap = kTaps - 1; tap > 0; --tap) {
      x[tap] = x[tap - 1];
    }
    x[0] = input;
    float z = bias;
    HEBB_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) {
      z += tap < available ? weight[tap] * x[tap] : 0.0f;
    }
    return z;
  }
};

/// Item: blocks of kForwardBlock tokens of the rows.
template <class T, int kTaps>
struct ForwardWalk {
  T* y;
  Convolution<T> in;
  int64_t blocks_per_row;
  bool silu;

  __device__ void operator()(int64_t item, int64_t c) const {
    const Split at(item, blocks_per_row);
    const int64_t row = at.quotient, first = at.remainder * kForwardBlock;
    const int64_t last = first + kForwardBlock < in.length ? first + kForwardBlock : in.length;
    Window<T, kTaps> window(in, row, first, c);
    for (int64_t t = first; t < last; t += kAhead) {
      const int64_t token = row * in.length + t;
      float input[kAhead];
      int32_t start[kAhead];
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        input[i] = t + i < last ? to_float(in.x[(token + i) * in.channels + c]) : 0.0f;
        start[i] = t + i < last ? in.doc_start[token + i] : 0;
      }
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const float z = window.push(input[i], in.available(t + i, start[i]));
        if (t + i < last) {
          y[(token + i) * in.channels + c] = from_float<T>(silu ? z * sigmoid(z) : z);
        }
      }
    }
  }
};

/// Item: blocks of kBlock tokens of the rows. A block's last inputs also feed the tokens behind it, whose d_z is computed again.
template <class T, int kTaps>
struct BackwardWalk {
  T* d_x;          // null: not wanted
  float* partial;  // likewise; of each item [channels, kTaps] in the order of the weights, then [channels]
  const T* d_y;
  Convolution<T> in;
  int64_t blocks_per_row;
  bool silu, accumulate;

  __device__ void operator()(int64_t item, int64_t c) const {
    const Split at(item, blocks_per_row);
    const int64_t row = at.quotient, first = at.remainder * kBlock, last = first + kBlock < in.length ? first + kBlock : in.length;
    const int64_t end = d_x != nullptr ? last + kTaps - 1 : last;
    Window<T, kTaps> window(in, row, first, c);
    float d_in[kTaps] = {}, d_weight[kTaps] = {}, d_bias = 0;  // d_in: by the token's distance from the last one
    for (int64_t t = first; t < end; t += kAhead) {
      const int64_t token = row * in.length + t;
      float input[kAhead], d[kAhead];
      int32_t start[kAhead];
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const bool exists = t + i < end && t + i < in.length;
        input[i] = exists ? to_float(in.x[(token + i) * in.channels + c]) : 0.0f;
        d[i] = exists ? to_float(d_y[(token + i) * in.channels + c]) : 0.0f;
        start[i] = exists ? in.doc_start[token + i] : 0;
      }
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int available = t + i < in.length ? in.available(t + i, start[i]) : 0;
        const float z = window.push(input[i], available), d_z = silu ? through_silu(d[i], z) : d[i];
        HEBB_UNROLL
        for (int tap = kTaps - 1; tap >= 0; --tap) {
          d_in[tap] = tap > 0 ? d_in[tap - 1] : 0.0f;
          if (tap < available) {
            d_in[tap] += window.weight[tap] * d_z;
            d_weight[tap] += t + i < last ? d_z * window.x[tap] : 0.0f;
          }
        }
        d_bias += t + i < last ? d_z : 0.0f;
        const int64_t done = t + i - (kTaps - 1);
        if (d_x != nullptr && first <= done && done < last) {
          write(d_x[(row * in.length + done) * in.channels + c], d_in[kTaps - 1], accumulate);
        }
      }
    }
    if (partial != nullptr) {
      float* const to = partial + item * (kTaps + 1) * in.channels;
      HEBB_UNROLL
      for (int tap = 0; tap < kTaps; ++tap) {
        to[c * kTaps + kTaps - 1 - tap] = d_weight[tap];
      }
      to[kTaps * in.channels + c] = d_bias;
    }
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
    return through_silu(d, convolution(token, c));
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

/// Calls f(taps as a constant) for filters that are walked; false for others.
template <class F>
bool dispatch_walk(const Tensor& weight, F&& f) {
  static_assert(kMaxWalk == 4);
  const int64_t taps = weight.defined() ? weight.size(1) : 0;
  if (taps == 2) {
    f(std::integral_constant<int, 2>{});
  } else if (taps == 3) {
    f(std::integral_constant<int, 3>{});
  } else if (taps == 4) {
    f(std::integral_constant<int, 4>{});
  }
  return 2 <= taps && taps <= kMaxWalk;
}

/// The gradients of weights and bias from the blocks' sums. in_order: they lie as BackwardWalk leaves them, else by taps.
void add_partials(Stream& stream, const ShortConvBackward& a, int64_t taps, bool in_order) {
  const int64_t channels = a.x.size(2), blocks = short_conv_blocks(a.x.size(0), a.x.size(1)), stride = (taps + 1) * channels;
  const float* const partial = a.partial.as<float>();
  if (a.d_weight.defined() && in_order) {
    add_column_sums(stream, a.d_weight.as<float>(), 1, {partial, DType::f32, blocks, stride, taps * channels});
  }
  for (int64_t tap = 0; a.d_weight.defined() && !in_order && tap < taps; ++tap) {
    add_column_sums(stream, a.d_weight.as<float>() + taps - 1 - tap, taps, {partial + tap * channels, DType::f32, blocks, stride, channels});
  }
  if (a.d_bias.defined()) {
    add_column_sums(stream, a.d_bias.as<float>(), 1, {partial + taps * channels, DType::f32, blocks, stride, channels});
  }
}

template <class T>
void backward(Stream& stream, const ShortConvBackward& a) {
  const int64_t rows = a.x.size(0), length = a.x.size(1), channels = a.x.size(2), blocks = short_conv_blocks(rows, length);
  const OutputGradient<T> d_z{a.d_y.as<T>(), convolution_of<T>(a, {}), a.silu};
  const int64_t taps = d_z.convolution.taps;
  float* const partial = a.d_weight.defined() || a.d_bias.defined() ? a.partial.as<float>() : nullptr;
  const bool walks = dispatch_walk(a.weight, [&](auto count) {
    each_element("short_conv_backward_walk", stream, blocks, channels,
                 BackwardWalk<T, count()>{a.d_x.as<T>(), partial, d_z.d_y, d_z.convolution, blocks / rows, a.silu, a.accumulate});
  });
  if (!walks && partial != nullptr) {
    each_element("short_conv_weights", stream, blocks * (taps + 1), channels, WeightGradient<T>{partial, d_z, blocks / rows});
  }
  if (partial != nullptr) {
    add_partials(stream, a, taps, walks);
  }
  if (!walks && a.d_x.defined()) {  // last: without a filter it may be d_y
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
    const Convolution<T> in = convolution_of<T>(a, a.previous);
    const int64_t rows = a.x.size(0), blocks = (in.length + kForwardBlock - 1) / kForwardBlock;
    const bool walks = dispatch_walk(a.weight, [&](auto count) {
      each_element("short_conv_forward_walk", stream, rows * blocks, in.channels, ForwardWalk<T, count()>{a.y.as<T>(), in, blocks, a.silu});
    });
    if (!walks) {
      each_element("short_conv_forward", stream, rows * in.length, in.channels, Forward<T>{a.y.as<T>(), in, a.silu});
    }
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
