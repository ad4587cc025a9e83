#pragma once
// Scalar formulas of the kernels, the same text on both devices. S is float or double, on a GPU in device code.
#include <cmath>
#ifndef HEBB_DEVICE
#include "kernels/common/cpu/math.h"
#endif

#ifdef HEBB_DEVICE
#define HEBB_FORMULA __device__ __forceinline__
namespace hebb::HEBB_DEVICE {
/// e^x. The CPU has one of its own for float, which vectorises and has other bits than std::exp.
template <class S> HEBB_FORMULA S exp_(S x) { return std::exp(x); }
#else
#define HEBB_FORMULA inline
namespace hebb::cpu {
#endif

/// 1 / (1 + e^-x), for loops that vectorise; 0 or 1 where e^-x leaves the range of S.
template <class S> HEBB_FORMULA S sigmoid(S x) { return S(1) / (S(1) + exp_(-x)); }

/// The same with full relative accuracy on the negative side, too: other bits than sigmoid.
template <class S> HEBB_FORMULA S logistic(S x) {
  const S e = std::exp(-std::abs(x));
  return (x < S(0) ? e : S(1)) / (S(1) + e);
}

/// ln logistic(x), without overflow.
template <class S> HEBB_FORMULA S log_logistic(S x) {
  return (x < S(0) ? x : S(0)) - std::log1p(std::exp(-std::abs(x)));
}

/// ln(1 + e^x); x itself above 20 (docs/layers/gdn.md, Precision).
template <class S> HEBB_FORMULA S softplus(S x) { return x > S(20) ? x : std::log1p(std::exp(x)); }

/// ln(1 + e^x) without a threshold, as lact's rates need it: other bits than softplus for x > 0.
template <class S> HEBB_FORMULA S smooth_softplus(S x) {
  return (x > S(0) ? x : S(0)) + std::log1p(std::exp(-std::abs(x)));
}

/// First and second derivative of silu(z) = z s at s = sigmoid(z).
template <class S> HEBB_FORMULA S silu_slope(S z, S s) { return s * (z * (S(1) - s) + S(1)); }
template <class S> HEBB_FORMULA S silu_bend(S z, S s) { return s * (S(1) - s) * (z * (S(1) - S(2) * s) + S(2)); }

/// silu and its first two derivatives.
template <class S> struct Silu {
  S value, first, second;

  HEBB_FORMULA explicit Silu(S z) {
    const S s = sigmoid(z);
    value = z * s;
    first = silu_slope(z, s);
    second = silu_bend(z, s);
  }
};

/// Of the standard normal distribution: its integral up to x, and its density at 0.
template <class S> HEBB_FORMULA S normal_cdf(S x) { return S(0.5) * std::erfc(-x * S(0.70710678118654752)); }
template <class S> constexpr S kNormalPeak = S(0.39894228040143268);

/// 1 + ELU(x).
template <class S> HEBB_FORMULA S one_plus_elu(S x) { return x > S(0) ? S(1) + x : std::exp(x); }

}  // namespace
