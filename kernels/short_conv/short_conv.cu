#include "kernels/short_conv/short_conv.h"

#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/head_norm/head_norm.h"
#include "kernels/short_conv/scratch.h"

// Bound by HBM: x in, y out forward; d_y and x in, d_x out backward; l2 norms of heads add nothing to either. Filters
// of up to four taps: a thread scans the tokens of a block in a pack of channels, with the inputs under the filter
// in registers; everything is read and computed once, but for K - 1 tokens a block. The threads of a head sum its
// squares by shuffles. Longer filters, and the activation alone: a thread holds one element. The taps before it come
// from L1. So do, backward, the 2 K - 1 inputs that its gradient depends on, and z is computed 2 K + 1 times. Norms
// are passes of their own.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kForwardBlock = 16;  // tokens that a thread scans
constexpr int kMaxScanTaps = 4;        // taps
constexpr int kAhead = 4;              // tokens whose loads are under way together

template <class T> struct Convolution {
  const T *x, *previous;
  const float *weight, *bias;
  const int32_t* doc_start;
  int64_t length, channels;
  int taps;

  /// How many taps of a token lie in its document, and in the row unless inputs are carried.
  __device__ int available(int64_t t, int32_t start) const {
    const int64_t inside = t + 1 - (previous != nullptr || start > 0 ? start : 0);
    return static_cast<int>(inside < taps ? inside : taps);
  }
  __device__ int available(int64_t token) const { return available(token % length, doc_start[token]); }
  __device__ float factor(int tap, int64_t c) const {
    return weight != nullptr ? weight[c * taps + taps - 1 - tap] : 1.0f;
  }
  __device__ float input(int64_t token, int tap, int64_t c) const {
    const int64_t t = token % length;
    if (tap <= t) { return to_float(x[(token - tap) * channels + c]); }
    const int64_t row = token / length;
    return to_float(previous[((row + 1) * (taps - 1) - (tap - t)) * channels + c]);
  }
  __device__ float operator()(int64_t token, int64_t c) const {
    float z = bias != nullptr ? bias[c] : 0.0f;
    for (int tap = 0; tap < available(token); ++tap) { z += factor(tap, c) * input(token, tap, c); }
    return z;
  }
};

/// Multiplies d with the derivative of silu at z.
__device__ __forceinline__ float through_silu(float d, float z) {
  const float s = sigmoid(z);
  return d * s * (1.0f + z * (1.0f - s));
}

/// Holds what lies under a filter of kTaps taps in channels c, ..., c + N - 1 and moves from token to token. Tap l
/// belongs to the token l before the last one.
template <class T, int kTaps, int N> struct Window {
  float weight[kTaps][N], x[kTaps][N], bias[N] = {};

  /// Begins with the tokens before token t of the row.
  __device__ Window(const Convolution<T>& in, int64_t row, int64_t t, int64_t c) {
    constexpr bool kVector = N > 1;
    float filter[kTaps * N];  // in the order of memory
    load_pack(filter, in.weight, c * kTaps, in.channels * kTaps, kVector);
    if (in.bias != nullptr) { load_pack(bias, in.bias, c, c + N, kVector); }
    HEBB_UNROLL
    for (int tap = 0; tap < kTaps; ++tap) {
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        weight[tap][j] = filter[j * kTaps + kTaps - 1 - tap];
        x[tap][j] = 0;
      }
      const int64_t before = t - 1 - tap;
      if (tap < kTaps - 1 && (before >= 0 || in.previous != nullptr)) {
        const T* const from = before >= 0 ? in.x + (row * in.length + before) * in.channels
                                          : in.previous + ((row + 1) * (kTaps - 1) + before) * in.channels;
        load_pack(x[tap], from, c, c + N, kVector);
      }
    }
  }
  /// z of the next token.
  __device__ __forceinline__ void push(const float (&input)[N], int available, float (&z)[N]) {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      HEBB_UNROLL
      for (int tap = kTaps - 1; tap > 0; --tap) { x[tap][j] = x[tap - 1][j]; }
      x[0][j] = input[j];
      z[j] = bias[j];
    }
    if (available == kTaps) {  // nearly always
      add<false>(available, z);
    } else {
      add<true>(available, z);
    }
  }

 private:
  template <bool kBegins> __device__ __forceinline__ void add(int available, float (&z)[N]) const {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      HEBB_UNROLL
      for (int tap = 0; tap < kTaps; ++tap) { z[j] += !kBegins || tap < available ? weight[tap][j] * x[tap][j] : 0.0f; }
    }
  }
};

/// The l2 norm of heads behind the activation; none: no norm.
struct Heads {
  float* scale;  // [B, T, heads]
  int64_t heads;
  int lanes;  // threads of a head

  /// Scales of the thread's head, `heads` apart from token to token.
  __device__ float* of(int64_t pack) const { return scale + Split(pack, lanes).quotient; }
};

/// Item: blocks of kForwardBlock tokens of the rows; then packs of channels.
template <class T, int kTaps, int N, bool kNormed> struct ForwardScan {
  T* y;
  Convolution<T> in;
  Heads norm;
  int64_t blocks_per_row;
  bool silu;

  __device__ void operator()(int64_t item, int64_t pack) const {
    constexpr bool kVector = N > 1;
    const Split at(item, blocks_per_row);
    const int64_t c = pack * N, row = at.quotient, first = at.remainder * kForwardBlock;
    const int64_t last = first + kForwardBlock < in.length ? first + kForwardBlock : in.length;
    float* const scale = kNormed ? norm.of(pack) : nullptr;
    Window<T, kTaps, N> window(in, row, first, c);
    for (int64_t t = first; t < last; t += kAhead) {
      const int64_t token = row * in.length + t;
      float input[kAhead][N];
      int32_t start[kAhead];
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {  // behind the end the last token again: no branch
        const int64_t from = token + (t + i < last ? i : last - 1 - t);
        load_pack(input[i], in.x + from * in.channels, c, c + N, kVector);
        start[i] = in.doc_start[from];
      }
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        float z[N];
        window.push(input[i], in.available(t + i, start[i]), z);
        if (t + i < last) { finish(token + i, c, scale, z); }
      }
    }
  }

  __device__ __forceinline__ void finish(int64_t token, int64_t c, float* scale, float (&z)[N]) const {
    float squares = 0;
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      z[j] = silu ? z[j] * sigmoid(z[j]) : z[j];
      squares += z[j] * z[j];
    }
    if constexpr (kNormed) {
      const float s = l2_scale(group_sum(squares, norm.lanes));
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { z[j] *= s; }
      scale[token * norm.heads] = s;  // all lanes of the head the same
    }
    store_pack(y + token * in.channels, c, c + N, N > 1, z);
  }
};

/// Item: blocks of tokens (ShortConvBlocks) of the rows; then packs of channels. A block's last inputs also feed the
/// tokens behind it, whose d_z is computed again. kNormed: d_y is the gradient at the normed heads.
template <class T, int kTaps, int N, bool kNormed> struct BackwardScan {
  T* d_x;          // null: not wanted
  float* partial;  // likewise; of each item [channels, kTaps] in the order of the weights, then [channels]
  const T* d_y;
  Convolution<T> in;
  Heads norm;
  int64_t blocks_per_row;
  bool silu, accumulate;

  __device__ void operator()(int64_t item, int64_t pack) const {
    constexpr bool kVector = N > 1;
    const Split at(item, blocks_per_row);
    const int64_t c = pack * N, row = at.quotient, first = ShortConvBlocks::begin(at.remainder);
    const int64_t last = ShortConvBlocks::end(at.remainder, in.length);
    const int64_t behind = d_x != nullptr ? last + kTaps - 1 : last, end = behind < in.length ? behind : in.length;
    const float* const scale = kNormed ? norm.of(pack) : nullptr;
    Window<T, kTaps, N> window(in, row, first, c);
    Sums sums = {};
    for (int64_t t = first; t < behind; t += kAhead) {
      const int64_t token = row * in.length + t;
      float input[kAhead][N], d[kAhead][N];
      int32_t start[kAhead];
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {  // behind the end the last token again, whose `available` is 0: no branch
        const int64_t from = token + (t + i < end ? i : end - 1 - t);
        load_pack(input[i], in.x + from * in.channels, c, c + N, kVector);
        load_pack(d[i], d_y + from * in.channels, c, c + N, kVector);
        start[i] = in.doc_start[from];
      }
      HEBB_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int available = t + i < end ? in.available(t + i, start[i]) : 0;
        float z[N];
        window.push(input[i], available, z);
        if (t + i < end) { to_d_z(kNormed ? scale[(token + i) * norm.heads] : 1.0f, z, d[i]); }
        sums.add(window, d[i], available, t + i < last);
        const int64_t done = t + i - (kTaps - 1);
        if (d_x != nullptr && first <= done && done < last) {
          write_pack(d_x + (row * in.length + done) * in.channels, c, in.channels, kVector, sums.input[kTaps - 1],
                     accumulate);
        }
      }
    }
    if (partial != nullptr) {
      float* const to = partial + item * (kTaps + 1) * in.channels;
      float filter[kTaps * N];
      HEBB_UNROLL
      for (int j = 0; j < kTaps * N; ++j) { filter[j] = sums.weight[kTaps - 1 - j % kTaps][j / kTaps]; }
      store_pack(to, c * kTaps, in.channels * kTaps, kVector, filter);
      store_pack(to + kTaps * in.channels, c, in.channels, kVector, sums.bias);
    }
  }

  struct Sums {
    float input[kTaps][N], weight[kTaps][N], bias[N];  // input: by the token's distance from the last one

    __device__ __forceinline__ void add(const Window<T, kTaps, N>& window, const float (&d_z)[N], int available,
                                        bool counts) {
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        HEBB_UNROLL
        for (int tap = kTaps - 1; tap >= 0; --tap) { input[tap][j] = tap > 0 ? input[tap - 1][j] : 0.0f; }
      }
      if (available == kTaps && counts) {  // nearly always
        add_taps<false>(window, d_z, available, counts);
      } else {
        add_taps<true>(window, d_z, available, counts);
      }
    }

    template <bool kEdge>
    __device__ __forceinline__ void add_taps(const Window<T, kTaps, N>& window, const float (&d_z)[N], int available,
                                             bool counts) {
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        HEBB_UNROLL
        for (int tap = 0; tap < kTaps; ++tap) {
          if (!kEdge || tap < available) {
            input[tap][j] += window.weight[tap][j] * d_z[j];
            weight[tap][j] += !kEdge || counts ? d_z[j] * window.x[tap][j] : 0.0f;
          }
        }
        bias[j] += !kEdge || counts ? d_z[j] : 0.0f;
      }
    }
  };

  /// d: the gradient at y, then at z. With n = a s, a = silu(z): d_a = s (d_n - n (n . d_n)).
  __device__ __forceinline__ void to_d_z(float s, const float (&z)[N], float (&d)[N]) const {
    if constexpr (kNormed) {
      float along = 0, n[N];
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        n[j] = (silu ? z[j] * sigmoid(z[j]) : z[j]) * s;
        along += n[j] * d[j];
      }
      along = group_sum(along, norm.lanes);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { d[j] = s * (d[j] - n[j] * along); }
    }
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { d[j] = silu ? through_silu(d[j], z[j]) : d[j]; }
  }
};

template <class T> struct ShortConvForwardBody {
  T* y;
  Convolution<T> convolution;
  bool silu;

  __device__ void operator()(int64_t token, int64_t c) const {
    const float z = convolution(token, c);
    y[token * convolution.channels + c] = from_float<T>(silu ? z * sigmoid(z) : z);
  }
};

template <class T> struct OutputGradient {
  const T* d_y;
  Convolution<T> convolution;
  bool silu;

  __device__ float operator()(int64_t token, int64_t c) const {
    const float d = to_float(d_y[token * convolution.channels + c]);
    if (!silu) { return d; }
    return through_silu(d, convolution(token, c));
  }
};

template <class T> struct InputGradient {
  T* d_x;
  OutputGradient<T> d_z;
  bool accumulate;

  __device__ void operator()(int64_t token, int64_t c) const {
    const Convolution<T>& convolution = d_z.convolution;
    const int64_t t = token % convolution.length;
    float sum = 0;
    for (int tap = 0; tap < convolution.taps && t + tap < convolution.length; ++tap) {
      if (convolution.doc_start[token + tap] > t) { break; }
      sum += convolution.factor(tap, c) * d_z(token + tap, c);
    }
    write(d_x[token * convolution.channels + c], sum, accumulate);
  }
};

// Item: (block of tokens, tap), the tap behind the last being the bias.
template <class T> struct WeightGradient {
  float* partial;
  OutputGradient<T> d_z;
  int64_t blocks_per_row;

  __device__ void operator()(int64_t item, int64_t c) const {
    const Convolution<T>& convolution = d_z.convolution;
    const int64_t block = item / (convolution.taps + 1), row = block / blocks_per_row;
    const int tap = static_cast<int>(item % (convolution.taps + 1));
    const int64_t first = ShortConvBlocks::begin(block % blocks_per_row),
                  last = ShortConvBlocks::end(block % blocks_per_row, convolution.length);
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

template <class T, class Args> Convolution<T> convolution_of(const Args& a, const Tensor& previous) {
  return {.x = a.x.template as<T>(),
          .previous = previous.as<T>(),
          .weight = a.weight.template as<float>(),
          .bias = a.bias.template as<float>(),
          .doc_start = a.doc_start.template as<int32_t>(),
          .length = a.x.size(1),
          .channels = a.x.size(2),
          .taps = a.weight.defined() ? static_cast<int>(a.weight.size(1)) : 1};
}

/// Calls f(taps, channels of a thread, whether heads are normed, all as constants) for filters that scan the tokens;
/// false for others. kPacked: channels of a thread where `packed`, else one; heads are normed in packs only.
template <int kPacked, class F> bool dispatch_scan(const Tensor& weight, bool packed, bool normed, F&& f) {
  const int64_t count = weight.defined() ? weight.size(1) : 0;
  if (count < 2 || count > kMaxScanTaps) { return false; }
  dispatch_number<2, 3, kMaxScanTaps>(count, [&](auto taps) {
    if (packed) {
      dispatch_flag(normed, [&](auto norms) { f(taps, std::integral_constant<int, kPacked>{}, norms); });
    } else {
      f(taps, std::integral_constant<int, 1>{}, std::false_type{});
    }
  });
  return true;
}

/// A scan with N channels a thread takes the norm along where a head has a power of two of threads, at most a warp.
/// Otherwise there are no heads.
template <int N, class Args> Heads heads_of(const Args& a, bool packed) {
  const int64_t lanes = a.scale.defined() ? a.head_dim / N : 0;
  if (!packed || lanes * N != a.head_dim || lanes < 1 || lanes > 32 || (lanes & (lanes - 1)) != 0) { return {}; }
  return {.scale = a.scale.template as<float>(), .heads = a.x.size(2) / a.head_dim, .lanes = static_cast<int>(lanes)};
}

/// Adds the blocks' sums to the gradients of weights and bias. in_order: the sums lie as BackwardScan leaves them,
/// otherwise by taps.
void add_partials(Stream& stream, const ShortConvBackward& a, const Tensor& sums, int64_t taps, bool in_order) {
  const int64_t channels = a.x.size(2), blocks = a.x.size(0) * ShortConvBlocks::count(a.x.size(1)),
                stride = (taps + 1) * channels;
  const float* const partial = sums.as<float>();
  if (in_order) { add_column_sums(stream, a.d_weight, partial, blocks, stride); }
  for (int64_t tap = 0; a.d_weight.defined() && !in_order && tap < taps; ++tap) {
    add_column_sums(stream, a.d_weight.as<float>() + taps - 1 - tap, taps,
                    {partial + tap * channels, DType::f32, blocks, stride, channels});
  }
  add_column_sums(stream, a.d_bias, partial + taps * channels, blocks, stride);
}

template <class T> void backward(Stream& stream, const ShortConvBackward& a, const ShortConvBackwardScratch& scratch) {
  constexpr int N = 4;  // registers: 18 a channel and what is loaded ahead
  const int64_t rows = a.x.size(0), length = a.x.size(1), channels = a.x.size(2),
                blocks = rows * ShortConvBlocks::count(length);
  const OutputGradient<T> d_z{a.d_y.as<T>(), convolution_of<T>(a, {}), a.silu};
  const int64_t taps = d_z.convolution.taps;
  float* const partial = scratch.partial.as<float>();
  const bool packed = can_vectorise<N>(channels, a.d_x.data, a.d_y.data, a.x.data, a.weight.data, a.bias.data, partial);
  const bool may_scan = a.weight.defined() && taps >= 2 && taps <= kMaxScanTaps;
  const Heads heads = may_scan ? heads_of<N>(a, packed) : Heads{};
  if (a.scale.defined() && heads.scale == nullptr) {
    const Tensor d_y = a.d_y.view({rows * length, channels});
    HEBB_DEVICE::run(stream, L2NormBackward{.d_x = d_y,
                                            .d_n = d_y,
                                            .n = a.n.view(d_y.shape),
                                            .scale = a.scale,
                                            .head_dim = a.head_dim,
                                            .accumulate = false});
  }
  const bool scans =
      dispatch_scan<N>(a.weight, packed, heads.scale != nullptr, [&](auto count, auto pack, auto normed) {
        each_element("short_conv_backward_scan", stream, blocks, channels / pack(),
                     BackwardScan<T, count(), pack(), normed()>{a.d_x.as<T>(), partial, d_z.d_y, d_z.convolution, heads,
                                                                blocks / rows, a.silu, a.accumulate});
      });
  if (!scans && partial != nullptr) {
    each_element("short_conv_weights", stream, blocks * (taps + 1), channels,
                 WeightGradient<T>{partial, d_z, blocks / rows});
  }
  if (partial != nullptr) { add_partials(stream, a, scratch.partial, taps, scans); }
  if (!scans && a.d_x.defined()) {  // last: without a filter it may be d_y
    each_element("short_conv_backward", stream, rows * length, channels,
                 InputGradient<T>{a.d_x.as<T>(), d_z, a.accumulate});
  }
}

template <class T> void forward(Stream& stream, const ShortConvForward& a) {
  constexpr int N = kPack<T>;
  const Convolution<T> in = convolution_of<T>(a, a.previous);
  const int64_t rows = a.x.size(0), blocks = (in.length + kForwardBlock - 1) / kForwardBlock;
  const bool packed = can_vectorise<N>(in.channels, a.y.data, in.x, in.previous, in.weight, in.bias);
  const Heads heads = heads_of<N>(a, packed);
  const bool scans =
      dispatch_scan<N>(a.weight, packed, heads.scale != nullptr, [&](auto count, auto pack, auto normed) {
        each_element("short_conv_forward_scan", stream, rows * blocks, in.channels / pack(),
                     ForwardScan<T, count(), pack(), normed()>{a.y.as<T>(), in, heads, blocks, a.silu});
      });
  if (!scans) {
    each_element("short_conv_forward", stream, rows * in.length, in.channels,
                 ShortConvForwardBody<T>{a.y.as<T>(), in, a.silu});
  }
  if (a.scale.defined() && (!scans || heads.scale == nullptr)) {
    const Tensor y = a.y.view({rows * in.length, in.channels});
    HEBB_DEVICE::run(stream, L2NormForward{.n = y, .scale = a.scale, .x = y, .head_dim = a.head_dim});
  }
}

/// A thread moves one channel of one row, oldest first: what it overwrites was read before.
template <class T> struct Shift {
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
  dispatch_float(a.x.dtype, [&]<class S>(S) { forward<S>(stream, a); });
}

void run(Stream& stream, const ShortConvBackward& a, const ShortConvBackwardScratch& scratch) {
  if (a.x.numel() > 0) {
    dispatch_float(a.x.dtype, [&]<class S>(S) { backward<S>(stream, a, scratch); });
  }
}

void run(Stream& stream, const ShortConvShift& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_element("short_conv_shift", stream, a.x.size(0), a.x.size(2),
                 Shift<T>{a.previous.as<T>(), a.x.as<T>(), a.previous.size(1), a.x.size(1), a.x.size(2)});
  });
}

}  // namespace hebb::HEBB_DEVICE
