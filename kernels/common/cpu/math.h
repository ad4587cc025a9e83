#pragma once
// Scalar functions that compilers vectorise, and sums in a fixed order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/tensor.h"

namespace hebb::cpu {

inline double exp_(double x) { return std::exp(x); }

/// exp in float: relative error below 2e-7, 0 below -87.3, inf above 88.7, NaN passes. Branch-free,
/// so loops over it vectorise (libm's exp does not).
inline float exp_(float x) {
  constexpr float kLog2e = 1.44269504088896341f, kLn2Hi = 0.693145751953125f, kLn2Lo = 1.42860682030941723e-6f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float c = x < -87.3f ? -87.3f : (x > 88.72f ? 88.72f : x);
  const float shifted = c * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (c - n * kLn2Hi) - n * kLn2Lo;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // Two factors, because 2^128 is not a float but exp(88.72) is.
  const int32_t e = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = e >> 1;
  const float scale_1 = std::bit_cast<float>((half + 127) << 23),
              scale_2 = std::bit_cast<float>((e - half + 127) << 23);
  const float y = p * scale_1 * scale_2;
  const float low = x < -87.3f ? 0.0f : y;
  return x > 88.72f ? INFINITY : low;
}

/// Sum of f(i), i = 0..n-1, in 16 interleaved lanes added in a fixed tree: vectorises, and gives the
/// same bits on every thread count.
template <class S, class F> inline S lane_sum(int64_t n, F&& f) {
  S lane[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) { lane[j] += f(i + j); }
  }
  for (int j = 0; i < n; ++i, ++j) { lane[j] += f(i); }
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) { lane[j] += lane[j + half]; }
  }
  return lane[0];
}

template <class S> inline S dot(int64_t n, const S* a, const S* b) {
  return lane_sum<S>(n, [&](int64_t i) { return a[i] * b[i]; });
}

template <class S> inline S squared_distance(int64_t n, const S* a, const S* b) {
  return lane_sum<S>(n, [&](int64_t i) { return (a[i] - b[i]) * (a[i] - b[i]); });
}

/// Largest of x[0..n), in lanes so that it vectorises; -inf where n is 0. NaN entries may be passed over.
template <class S> inline S largest_of(int64_t n, const S* x) {
  S lane[16];
  std::fill(lane, lane + 16, -std::numeric_limits<S>::infinity());
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) { lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j]; }
  }
  for (; i < n; ++i) { lane[0] = std::max(lane[0], x[i]); }
  return *std::max_element(lane, lane + 16);
}

/// y = softmax of x, which may be y.
template <class S> void softmax(int64_t n, const S* x, S* y) {
  const S top = *std::max_element(x, x + n);
  S sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    y[i] = exp_(x[i] - top);
    sum += y[i];
  }
  for (int64_t i = 0; i < n; ++i) { y[i] /= sum; }
}

/// Writes x, or adds it to what is there.
template <class S> inline void put(S& to, S x, bool accumulate) { to = accumulate ? to + x : x; }

/// Adds `width` columns of each of `blocks` rows, `stride` apart, to the elements of `to` from `first` on, `step`
/// apart. Nothing where `to` is undefined.
template <class S>
void add_blocks(const Tensor& to, int64_t blocks, int64_t width, const S* rows, int64_t stride, int64_t first = 0,
                int64_t step = 1) {
  S* sums = to.defined() ? to.as<S>() + first : nullptr;
  for (int64_t block = 0; sums != nullptr && block < blocks; ++block) {
    const S* row = rows + block * stride;
    for (int64_t c = 0; c < width; ++c) { sums[c * step] += row[c]; }
  }
}

}  // namespace hebb::cpu
