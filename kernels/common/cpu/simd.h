#pragma once
#include <cmath>
#include <numbers>

#include "kernels/common/cpu/vec.h"

/// Elementary functions of vectors.
/// float: own polynomials (minimax fits), at most about 2 ulp; exp, sigmoid and softplus underflow
/// gradually to 0; NaN stays NaN. double: libm lane by lane, since fp64 exists to verify.
namespace hebb::cpu {
namespace detail {

inline Vec<double> per_lane(Vec<double> x, double (*f)(double)) {
  for (int i = 0; i < Vec<double>::width; ++i) { x.v[i] = f(x.v[i]); }
  return x;
}

/// c0 + c1 x + c2 x^2 + ...
template <class... C> inline Vec<float> polynomial(Vec<float> x, float c0, C... rest) {
  if constexpr (sizeof...(C) == 0) {
    return Vec<float>(c0);
  } else {
    return fma(polynomial(x, rest...), x, Vec<float>(c0));
  }
}

constexpr float kLn2High = 0.693359375f;  // few bits: its product with an exponent is exact
constexpr float kLn2Low = -2.12194440e-4f;

}  // namespace detail

/// exp(x) = 2^n exp(r), |r| <= ln(2)/2.
inline Vec<float> exp(Vec<float> x) {
  using V = Vec<float>;
  // Outside these limits the result is 0 or infinity; the order of arguments keeps NaN.
  x = min(V(89.0f), max(V(-104.0f), x));
  const V shifter(0x1.8p23f);  // adding it rounds to an integer, held in the low mantissa bits
  const V shifted = fma(x, V(std::numbers::log2e_v<float>), shifter);
  const V n = shifted - shifter;
  V r = fma(n, V(-detail::kLn2High), x);
  r = fma(n, V(-detail::kLn2Low), r);
  const V p = detail::polynomial(r, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a2p-7f, 0x1.6a23dp-10f);
  const V e = fma(p, r * r, r) + V(1.0f);
#if defined(HEBB_AVX512)
  return _mm512_maskz_scalef_ps(0xffff, e.v, n.v);
#else
  // 2^n in two factors, since n reaches beyond the exponents of normal numbers.
  const V::Bits whole = shifted.bits() - shifter.bits();
  const V::Bits half = whole >> 1;
  return e * V::from_bits((half + 127) << 23) * V::from_bits((whole - half + 127) << 23);
#endif
}

/// log(x) = e ln 2 + log(1 + f), 1 + f in [sqrt(1/2), sqrt(2)).
inline Vec<float> log(Vec<float> x) {
  using V = Vec<float>;
  const V positive = max(V(0x1p-149f), x);  // zero and below get their value at the end
  const auto is_subnormal = positive < V(0x1p-126f);
  const V scaled = select(is_subnormal, positive * V(0x1p23f), positive);
  const V root_half(0x1.6a09e6p-1f);
  const V::Bits exponent = (scaled.bits() - root_half.bits()) >> 23;
  const V f = V::from_bits(scaled.bits() - (exponent << 23)) - V(1.0f);
  const V e = V(__builtin_convertvector(exponent, V::Native)) - select(is_subnormal, V(23.0f), V(0.0f));
  const V f2 = f * f;
  V y = detail::polynomial(f, 0x1.555554p-2f, -0x1.000226p-2f, 0x1.99a008p-3f, -0x1.547244p-3f, 0x1.22da1ep-3f,
                           -0x1.0d8542p-3f, 0x1.055b68p-3f, -0x1.38b57ap-4f);
  y = y * f2 * f;
  y = fma(e, V(detail::kLn2Low), y);
  y = fma(f2, V(-0.5f), y) + f;
  y = fma(e, V(detail::kLn2High), y);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  y = select(x < V(kInf), y, x);  // infinity and NaN
  y = select(x == V(0.0f), V(-kInf), y);
  return select(x < V(0.0f), V(std::numeric_limits<float>::quiet_NaN()), y);
}

/// log(1 + x): the logarithm of u = 1 + x rounded, plus the first-order term of what rounding lost.
inline Vec<float> log1p(Vec<float> x) {
  using V = Vec<float>;
  const V u = x + V(1.0f);
  const V lost = x - (u - V(1.0f));
  // From 2^24 up u = x; at x = -1 the logarithm is infinite.
  return log(u) + select(abs(x) < V(0x1p24f), lost / max(u, V(0x1p-126f)), V(0.0f));
}

/// erf(x): odd polynomial up to 0.92, from there 1 - exp(-t - t Q(t)).
inline Vec<float> erf(Vec<float> x) {
  using V = Vec<float>;
  const V square = x * x;
  const V small = fma(detail::polynomial(square, 0x1.06eba6p-3f, -0x1.8126ep-2f, 0x1.ce1952p-4f, -0x1.b679fap-6f,
                                         0x1.46d0ccp-8f, -0x1.385674p-11f),
                      x, x);
  const V t = min(V(4.0f), abs(x));
  const V q = detail::polynomial(t, 0x1.07328ap-3f, 0x1.457cep-1f, 0x1.af270ap-4f, -0x1.770776p-6f, 0x1.a563fcp-9f,
                                 -0x1.c0c23ep-13f);
  const V large = V(1.0f) - exp(-fma(t, q, t));
  return copysign(select(abs(x) < V(0.925f), small, large), x);
}

/// tanh(x): odd polynomial up to 0.625, from there by exp(2x).
inline Vec<float> tanh(Vec<float> x) {
  using V = Vec<float>;
  const V square = x * x;
  const V p =
      detail::polynomial(square, -0x1.555532p-2f, 0x1.110726p-3f, -0x1.b83c5ap-5f, 0x1.52269ap-6f, -0x1.75e1cap-8f);
  const V small = fma(p * square, x, x);
  const V large = V(1.0f) - V(2.0f) / (exp(abs(x) * V(2.0f)) + V(1.0f));
  return copysign(select(abs(x) < V(0.625f), small, large), x);
}

inline Vec<double> exp(Vec<double> x) { return detail::per_lane(x, ::exp); }
inline Vec<double> log(Vec<double> x) { return detail::per_lane(x, ::log); }
inline Vec<double> log1p(Vec<double> x) { return detail::per_lane(x, ::log1p); }
inline Vec<double> erf(Vec<double> x) { return detail::per_lane(x, ::erf); }
inline Vec<double> tanh(Vec<double> x) { return detail::per_lane(x, ::tanh); }

/// 1 / (1 + exp(-x)), with full relative accuracy on the negative side too.
template <class S> inline Vec<S> sigmoid(Vec<S> x) {
  const Vec<S> one(S(1));
  const Vec<S> e = exp(-abs(x));
  return select(x < Vec<S>(S(0)), e, one) / (e + one);
}

/// log(1 + exp(x)).
template <class S> inline Vec<S> softplus(Vec<S> x) { return max(Vec<S>(S(0)), x) + log1p(exp(-abs(x))); }

}  // namespace hebb::cpu
