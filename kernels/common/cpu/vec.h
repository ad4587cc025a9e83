#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// Portable vectors: compiler vector types of the widest register of the instruction set that the
/// build targets, with intrinsics only where the compiler has no operator (fma, min, masked access).
namespace hebb::cpu {

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define HEBB_AVX512 1
inline constexpr int kVecBytes = 64;
#elif defined(__AVX2__) && defined(__FMA__)
#define HEBB_AVX2 1
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif

namespace detail {
template <class S> struct NativeVec { typedef S type __attribute__((vector_size(kVecBytes))); };
template <class S> using IntOf = std::conditional_t<sizeof(S) == 4, int32_t, int64_t>;
}  // namespace detail

/// One register of floats or doubles. `v` is the compiler's vector type; operators act per lane and
/// comparisons give a Mask for select().
template <class S> struct Vec {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>);
  using Native = typename detail::NativeVec<S>::type;
  using Bits = typename detail::NativeVec<detail::IntOf<S>>::type;
  using Mask = Bits;
  static constexpr int width = kVecBytes / static_cast<int>(sizeof(S));

  Native v;

  Vec() = default;
  Vec(Native native) : v(native) {}
  Vec(S scalar) : v(scalar - Native{}) {}  // x - 0 keeps every x, -0 too

  S operator[](int lane) const { return v[lane]; }
  Bits bits() const { return reinterpret_cast<Bits>(v); }
  static Vec from_bits(Bits b) { return reinterpret_cast<Native>(b); }

  Vec operator-() const { return -v; }
  Vec& operator+=(Vec o) {
    v += o.v;
    return *this;
  }
  Vec& operator-=(Vec o) {
    v -= o.v;
    return *this;
  }
  Vec& operator*=(Vec o) {
    v *= o.v;
    return *this;
  }
  friend Vec operator+(Vec a, Vec b) { return a.v + b.v; }
  friend Vec operator-(Vec a, Vec b) { return a.v - b.v; }
  friend Vec operator*(Vec a, Vec b) { return a.v * b.v; }
  friend Vec operator/(Vec a, Vec b) { return a.v / b.v; }
  friend Mask operator<(Vec a, Vec b) { return a.v < b.v; }
  friend Mask operator<=(Vec a, Vec b) { return a.v <= b.v; }
  friend Mask operator>(Vec a, Vec b) { return a.v > b.v; }
  friend Mask operator>=(Vec a, Vec b) { return a.v >= b.v; }
  friend Mask operator==(Vec a, Vec b) { return a.v == b.v; }
};

/// All lanes of a vector, as opposed to a count of leading ones; see vector_loop.
struct AllLanes {};

template <class S> inline Vec<S> load(const S* p) {
  Vec<S> r;
  std::memcpy(&r.v, p, sizeof(r.v));
  return r;
}
template <class S> inline void store(S* p, Vec<S> x) { std::memcpy(p, &x.v, sizeof(x.v)); }
template <class S> inline Vec<S> load(const S* p, AllLanes) { return load(p); }
template <class S> inline void store(S* p, Vec<S> x, AllLanes) { store(p, x); }

/// The first `count` lanes (0 to width).
template <class S> inline typename Vec<S>::Mask leading(int count) {
  typename Vec<S>::Bits index{};
  for (int i = 0; i < Vec<S>::width; ++i) { index[i] = i; }
  return index < static_cast<detail::IntOf<S>>(count);
}

/// The first `count` elements (0 to width), zeros behind; touches no memory behind them.
template <class S> inline Vec<S> load(const S* p, int count) {
#if defined(HEBB_AVX512)
  if constexpr (sizeof(S) == 4) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
  } else {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1), p);
  }
#elif defined(HEBB_AVX2)
  const auto lanes = reinterpret_cast<__m256i>(leading<S>(count));
  if constexpr (sizeof(S) == 4) {
    return _mm256_maskload_ps(p, lanes);
  } else {
    return _mm256_maskload_pd(p, lanes);
  }
#else
  Vec<S> r(S(0));
  std::memcpy(&r.v, p, static_cast<size_t>(count) * sizeof(S));
  return r;
#endif
}

/// Writes the first `count` lanes (0 to width) and nothing behind them.
template <class S> inline void store(S* p, Vec<S> x, int count) {
#if defined(HEBB_AVX512)
  if constexpr (sizeof(S) == 4) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), x.v);
  } else {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << count) - 1), x.v);
  }
#else
  std::memcpy(p, &x.v, static_cast<size_t>(count) * sizeof(S));
#endif
}

template <class S> inline Vec<S> select(typename Vec<S>::Mask mask, Vec<S> if_true, Vec<S> if_false) {
  return mask ? if_true.v : if_false.v;
}

/// The lanes behind `count` replaced by `fill`.
template <class S> inline Vec<S> fill_behind(Vec<S> x, int count, S fill) {
  return select(leading<S>(count), x, Vec<S>(fill));
}
template <class S> inline Vec<S> fill_behind(Vec<S> x, AllLanes, S) { return x; }

/// a * b + c; one rounding on x86 with FMA and on every target whose compiler contracts it.
template <class S> inline Vec<S> fma(Vec<S> a, Vec<S> b, Vec<S> c) {
#if defined(HEBB_AVX512)
  if constexpr (sizeof(S) == 4) {
    return _mm512_fmadd_ps(a.v, b.v, c.v);
  } else {
    return _mm512_fmadd_pd(a.v, b.v, c.v);
  }
#elif defined(HEBB_AVX2)
  if constexpr (sizeof(S) == 4) {
    return _mm256_fmadd_ps(a.v, b.v, c.v);
  } else {
    return _mm256_fmadd_pd(a.v, b.v, c.v);
  }
#else
  return a.v * b.v + c.v;
#endif
}

/// a > b ? a : b per lane (one instruction): b where either is NaN, so max(limit, x) keeps the NaN of x. min alike.
template <class S> inline Vec<S> max(Vec<S> a, Vec<S> b) { return select(a > b, a, b); }
template <class S> inline Vec<S> min(Vec<S> a, Vec<S> b) { return select(a < b, a, b); }

template <class S> inline Vec<S> abs(Vec<S> x) {
  constexpr auto kMax = std::numeric_limits<detail::IntOf<S>>::max();  // all but the sign bit
  return Vec<S>::from_bits(x.bits() & kMax);
}
/// |magnitude| with the sign of `sign`.
template <class S> inline Vec<S> copysign(Vec<S> magnitude, Vec<S> sign) {
  constexpr auto kMax = std::numeric_limits<detail::IntOf<S>>::max();
  return Vec<S>::from_bits((magnitude.bits() & kMax) | (sign.bits() & ~kMax));
}

template <class S> inline Vec<S> sqrt(Vec<S> x) {
#if defined(HEBB_AVX512)
  // Masked forms: the plain ones of GCC 12 warn of an uninitialised operand.
  if constexpr (sizeof(S) == 4) {
    return _mm512_maskz_sqrt_ps(0xffff, x.v);
  } else {
    return _mm512_maskz_sqrt_pd(0xff, x.v);
  }
#elif defined(HEBB_AVX2)
  if constexpr (sizeof(S) == 4) {
    return _mm256_sqrt_ps(x.v);
  } else {
    return _mm256_sqrt_pd(x.v);
  }
#else
  for (int i = 0; i < Vec<S>::width; ++i) { x.v[i] = std::sqrt(x.v[i]); }
  return x;
#endif
}

namespace detail {
/// Folds the upper half onto the lower until one lane is left. In registers where intrinsics reach the halves, since
/// dot products of short rows spend much of their time here.
#if defined(HEBB_AVX512) || defined(HEBB_AVX2)
template <class Op> inline float fold(__m128 x, Op op) {
  x = op(x, _mm_movehl_ps(x, x));
  return op(x, _mm_movehdup_ps(x))[0];
}
template <class Op> inline double fold(__m128d x, Op op) { return op(x, _mm_unpackhi_pd(x, x))[0]; }
template <class Op> inline float fold(__m256 x, Op op) {
  return fold(op(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)), op);
}
template <class Op> inline double fold(__m256d x, Op op) {
  return fold(op(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1)), op);
}
#endif
#if defined(HEBB_AVX512)
// Masked forms: see sqrt.
template <class Op> inline float fold(__m512 x, Op op) {
  return fold(op(_mm512_maskz_extractf32x8_ps(0xff, x, 0), _mm512_maskz_extractf32x8_ps(0xff, x, 1)), op);
}
template <class Op> inline double fold(__m512d x, Op op) {
  return fold(op(_mm512_maskz_extractf64x4_pd(0xff, x, 0), _mm512_maskz_extractf64x4_pd(0xff, x, 1)), op);
}
#elif !defined(HEBB_AVX2)
template <class V, class Op> inline auto fold(V x, Op op) {
  constexpr int width = sizeof(x) / sizeof(x[0]);
  for (int half = width / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) { x[i] = op(x[i], x[i + half]); }
  }
  return x[0];
}
#endif
}  // namespace detail

/// Sum of the lanes in a fixed order: halves onto halves.
template <class S> inline S sum(Vec<S> x) {
  return detail::fold(x.v, [](auto a, auto b) { return a + b; });
}
template <class S> inline S max_lane(Vec<S> x) {
  return detail::fold(x.v, [](auto a, auto b) { return a > b ? a : b; });
}

/// Calls f(i, lanes) for i = 0, width, ... below n with lanes = AllLanes, and with the int count of
/// elements left for the last partial vector, so that one generic lambda serves both:
///   vector_loop<S>(n, [&](int64_t i, auto lanes) { store(y + i, exp(load(x + i, lanes)), lanes); });
template <class S, class F> inline void vector_loop(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + Vec<S>::width <= n; i += Vec<S>::width) { f(i, AllLanes{}); }
  if (i < n) { f(i, static_cast<int>(n - i)); }
}

/// Sum of a[i] b[i], in one chain of multiply-adds a lane.
template <class S> inline S dot_row(int64_t n, const S* a, const S* b) {
  Vec<S> total(S(0));
  vector_loop<S>(n, [&](int64_t i, auto lanes) { total = fma(load(a + i, lanes), load(b + i, lanes), total); });
  return sum(total);
}

/// Writes x, or adds it to what is there.
template <class S, class Lanes> inline void put(S* to, Vec<S> x, Lanes lanes, bool accumulate) {
  store(to, accumulate ? load(to, lanes) + x : x, lanes);
}

}  // namespace hebb::cpu
