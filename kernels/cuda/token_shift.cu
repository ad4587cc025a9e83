#include "kernels/token_shift.h"

#include "kernels/cuda/common/column_sums.h"

// Bound by HBM: 2 passes forward, 3 backward (4 to accumulate).
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kBlock = 256;  // tokens of one partial sum, as in token_shift_blocks

template <class T>
struct Forward {
  T* y;
  const T *x, *previous;
  const float* mu;
  const int32_t* doc_start;
  int64_t length, channels;
  bool zero_start;

  __device__ void operator()(int64_t token, int64_t c) const {
    const int64_t t = token % length, at = token * channels + c;
    const float now = to_float(x[at]);
    float before = zero_start ? 0.0f : now;
    if (doc_start[token] < t) {
      before = to_float(t > 0 ? x[at - channels] : previous[token / length * channels + c]);
    }
    y[at] = from_float<T>(now + mu[c] * (before - now));
  }
};

// A thread walks over the tokens of a block in one channel.
template <class T>
struct Backward {
  T* d_x;
  float* partial;
  const T *d_y, *x;
  const float* mu;
  const int32_t* doc_start;
  int64_t length, channels, tokens;
  bool zero_start, accumulate;

  __device__ void operator()(int64_t block, int64_t c) const {
    const int64_t end = (block + 1) * kBlock < tokens ? (block + 1) * kBlock : tokens;
    const float m = mu[c];
    float sum = 0;
    for (int64_t token = block * kBlock; token < end; ++token) {
      const int64_t t = token % length, at = token * channels + c;
      const bool starts = doc_start[token] >= t, repeats = starts && !zero_start;
      const bool feeds_next = t + 1 < length && doc_start[token + 1] <= t;
      const float g = to_float(d_y[at]);
      if (d_x != nullptr) {
        write(d_x[at], (repeats ? g : g * (1.0f - m)) + (feeds_next ? m * to_float(d_y[at + channels]) : 0.0f), accumulate);
      }
      if (!repeats) {
        sum += g * ((starts || t == 0 ? 0.0f : to_float(x[at - channels])) - to_float(x[at]));
      }
    }
    partial[block * channels + c] = sum;
  }
};

}  // namespace

void run(Stream& stream, const TokenShiftForward& a) {
  const int64_t length = a.x.size(1), channels = a.x.size(2);
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("token_shift_forward", stream, a.x.size(0) * length, channels,
                 Forward<T>{.y = a.y.as<T>(), .x = a.x.as<T>(), .previous = a.previous.as<T>(), .mu = a.mu.as<float>(),
                            .doc_start = a.doc_start.as<int32_t>(), .length = length, .channels = channels,
                            .zero_start = a.zero_start});
  });
}

void run(Stream& stream, const TokenShiftBackward& a) {
  const int64_t length = a.x.size(1), channels = a.x.size(2), tokens = a.x.size(0) * length;
  const int64_t blocks = token_shift_blocks(tokens);
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("token_shift_backward", stream, blocks, channels,
                 Backward<T>{.d_x = a.d_x.as<T>(), .partial = a.partial.as<float>(), .d_y = a.d_y.as<T>(), .x = a.x.as<T>(),
                             .mu = a.mu.as<float>(), .doc_start = a.doc_start.as<int32_t>(), .length = length, .channels = channels,
                             .tokens = tokens, .zero_start = a.zero_start, .accumulate = a.accumulate});
  });
  add_column_sums(stream, a.d_mu, a.partial, blocks);
}

}  // namespace hebb::HEBB_DEVICE
