#pragma once
#include <algorithm>

#include "kernels/common/cpu/scratch_parts.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/gated_delta/gated_delta.h"
#include "kernels/gated_delta/sizes.h"
#include "kernels/gemm/gemm_cpu.h"

/// What the forward and backward passes of the chunked delta rule share. Matrices of a chunk of c
/// tokens are row-major without gaps; KQ is K [c, dk] above the scaled Q [c, dk], so that products with
/// a common factor are one.
namespace hebb::cpu::delta {

inline DeltaChunk chunk_at(const ChunkGrid& grid, int64_t i) {
  const int64_t* row = grid.chunks.as<int64_t>() + i * 3;
  return {row[0], row[1], row[2]};
}

/// exp(x), x <= 0, 0 where it (or a product with it) would be subnormal: those stall the multiply-add units.
template <class S> inline Vec<S> decay(Vec<S> x) {
  return select(x < Vec<S>(S(sizeof(S) == 4 ? -80 : -690)), Vec<S>(S(0)), exp(x));
}

template <class S> inline void scale_row(int64_t n, S factor, const S* from, S* to) {
  vector_loop<S>(n, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes) * Vec<S>(factor), lanes); });
}
/// to += factor from
template <class S> inline void add_row(int64_t n, S factor, const S* from, S* to) {
  vector_loop<S>(n, [&](int64_t i, auto lanes) {
    store(to + i, fma(Vec<S>(factor), load(from + i, lanes), load(to + i, lanes)), lanes);
  });
}

/// The decays of one chunk of one value head. Sums of logs and their differences are taken in double:
/// after a strong decay an fp32 sum has lost the digits of the weak ones that follow.
template <class S> struct Decays {
  double* sums;    // [c] gam
  S *start, *end;  // [c] e^gam, e^(gam_last - gam)
  S last;          // e^gam_last
  S* table;        // [c, c] D, the lower triangle

  Decays(ScratchParts<S>& parts, int64_t c)
      : sums(parts.doubles(c)), start(parts.take(c)), end(parts.take(c)), table(parts.take(c * c)) {}

  void load_gates(const S* g, int64_t stride, int64_t c) {
    double total = 0;
    for (int64_t i = 0; i < c; ++i) {
      total += static_cast<double>(g[i * stride]);
      sums[i] = total;
      start[i] = static_cast<S>(total);
    }
    for (int64_t i = 0; i < c; ++i) { end[i] = static_cast<S>(total - sums[i]); }
    exponentials(start, c);
    exponentials(end, c);
    last = start[c - 1];
  }

  void fill_table(int64_t c) {
    constexpr int64_t w = Vec<double>::width;
    for (int64_t i = 0; i < c; ++i) {
      S* row = table + i * c;
      if (c % w == 0) {  // whole vectors, above the diagonal too
        for (int64_t j = 0; j <= i; j += w) {
          typedef S Narrow __attribute__((vector_size(w * sizeof(S))));
          const Narrow narrow = __builtin_convertvector((Vec<double>(sums[i]) - load(sums + j)).v, Narrow);
          std::memcpy(row + j, &narrow, sizeof(narrow));
        }
      } else {
        for (int64_t j = 0; j <= i; ++j) { row[j] = static_cast<S>(sums[i] - sums[j]); }
      }
    }
    // After all differences: a load of what narrower stores have just written waits for them.
    for (int64_t i = 0; i < c; ++i) { exponentials(table + i * c, i + 1); }
  }

 private:
  static void exponentials(S* x, int64_t n) {
    vector_loop<S>(n, [&](int64_t i, auto lanes) { store(x + i, decay(load(x + i, lanes)), lanes); });
  }
};

// Products with lower triangles go by panels of this many rows or columns: a chunk of 64 saves a
// quarter of the multiply-adds, and panels stay long enough for the register kernel.
inline constexpr int64_t kPanel = 32;

/// out [2 c, c] = [A; B] Rᵀ, both lower triangles (what lies above is undefined); left = [A; B] [2 c, n], R [c, n].
template <class S> void pair_products(int64_t c, int64_t n, const S* left, const S* right, S* out) {
  for (int64_t first = 0; first < c; first += kPanel) {
    const int64_t width = std::min(kPanel, c - first), rows = first == 0 ? 2 * c : c - first;
    gemm_serial<S>(false, true, rows, width, n, S(1), left + first * n, n, right + first * n, n, false,
                   out + first * c + first, c);
    if (first > 0) {
      gemm_serial<S>(false, true, rows, width, n, S(1), left + (c + first) * n, n, right + first * n, n, false,
                     out + (c + first) * c + first, c);
    }
  }
}

/// The same for one matrix: out [c, c] (+)= alpha A Rᵀ.
template <class S>
void lower_products(int64_t c, int64_t n, S alpha, const S* left, const S* right, bool accumulate, S* out) {
  for (int64_t first = 0; first < c; first += kPanel) {
    gemm_serial<S>(false, true, c - first, std::min(kPanel, c - first), n, alpha, left + first * n, n,
                   right + first * n, n, accumulate, out + first * c + first, c);
  }
}

/// out (+)= L X for L [c, c] that is 0 above the diagonal, X [c, n].
template <class S>
void multiply_lower(int64_t c, int64_t n, const S* lower, const S* x, bool accumulate, S* out, int64_t stride) {
  for (int64_t first = 0; first < c; first += kPanel) {
    const int64_t last = std::min(c, first + kPanel);
    gemm_serial<S>(false, false, last - first, n, last, S(1), lower + first * c, c, x, n, accumulate,
                   out + first * stride, stride);
  }
}

/// out (+)= Lᵀ X.
template <class S>
void multiply_lower_transposed(int64_t c, int64_t n, const S* lower, const S* x, bool accumulate, S* out) {
  for (int64_t first = 0; first < c; first += kPanel) {
    gemm_serial<S>(true, false, std::min(kPanel, c - first), n, c - first, S(1), lower + first * c + first, c,
                   x + first * n, n, accumulate, out + first * n, n);
  }
}

/// Row i of a lower triangle [c, c]: f(j, lanes) for j <= i, then zeros. f is 0 where what it loads is 0.
template <class S, class F> inline void lower_row(int64_t i, int64_t c, S* out, F&& f) {
  constexpr int64_t w = Vec<S>::width;
  int64_t j = 0;
  for (; j + w <= i + 1; j += w) { store(out + j, f(j, AllLanes{})); }
  const int own = static_cast<int>(i + 1 - j);
  if (own > 0 && j + w <= c) {
    store(out + j, f(j, own));
    j += w;
  } else if (own > 0) {
    store(out + j, f(j, own), own);
    j += own;
  }
  vector_loop<S>(c - j, [&](int64_t at, auto lanes) { store(out + j + at, Vec<S>(S(0)), lanes); });
}

inline constexpr int64_t kSolveBlock = 16;

/// The same for one block and a vector of columns: a solved row goes into all later ones at once, whose sums do not
/// wait for each other. Each sum has the order that row after row gives it.
template <class S, class Lanes> inline void solve_block(int64_t c, int64_t n, const S* lower, S* column, Lanes lanes) {
  Vec<S> x[kSolveBlock];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kSolveBlock; ++i) { x[i] = load(column + i * n, lanes); }
#pragma GCC unroll 16
  for (int64_t j = 0; j + 1 < kSolveBlock; ++j) {
#pragma GCC unroll 16
    for (int64_t i = j + 1; i < kSolveBlock; ++i) { x[i] = fma(-Vec<S>(lower[i * c + j]), x[j], x[i]); }
  }
#pragma GCC unroll 16
  for (int64_t i = 1; i < kSolveBlock; ++i) { store(column + i * n, x[i], lanes); }
}

/// X = (I + L)^(-1) X for the strictly lower triangle of L [c, c] (what else it holds is ignored), X [c, n].
template <class S> void solve_lower(int64_t c, int64_t n, const S* lower, S* x) {
  for (int64_t first = 0; first < c; first += kSolveBlock) {
    const int64_t last = std::min(c, first + kSolveBlock);
    if (first > 0) {
      gemm_serial<S>(false, false, last - first, n, first, S(-1), lower + first * c, c, x, n, true, x + first * n, n);
    }
    const S* block = lower + first * c + first;
    vector_loop<S>(n, [&](int64_t at, auto lanes) {
      S* column = x + first * n + at;
      if (last - first == kSolveBlock) {
        solve_block<S>(c, n, block, column, lanes);
        return;
      }
      for (int64_t i = 1; i < last - first; ++i) {
        Vec<S> sum = load(column + i * n, lanes);
        for (int64_t j = 0; j < i; ++j) { sum = fma(-Vec<S>(block[i * c + j]), load(column + j * n, lanes), sum); }
        store(column + i * n, sum, lanes);
      }
    });
  }
}

/// X = (I + L)^(-T) X.
template <class S> void solve_lower_transposed(int64_t c, int64_t n, const S* lower, S* x) {
  for (int64_t last = c; last > 0;) {
    const int64_t first = (last - 1) / kSolveBlock * kSolveBlock;
    if (last < c) {
      gemm_serial<S>(true, false, last - first, n, c - last, S(-1), lower + last * c + first, c, x + last * n, n, true,
                     x + first * n, n);
    }
    vector_loop<S>(n, [&](int64_t at, auto lanes) {
      for (int64_t i = last - 2; i >= first; --i) {
        Vec<S> sum = load(x + i * n + at, lanes);
        for (int64_t j = i + 1; j < last; ++j) {
          sum = fma(Vec<S>(-lower[j * c + i]), load(x + j * n + at, lanes), sum);
        }
        store(x + i * n + at, sum, lanes);
      }
    });
    last = first;
  }
}

/// Where the tokens of one value head lie: token i of the batch at pointer + i * stride.
template <class S> struct HeadInputs {
  const S *q, *k, *v, *g, *beta;
  int64_t key_stride, value_stride, gate_stride;

  template <class Args>
  HeadInputs(const Args& a, const DeltaSizes& n, int64_t value_head)
      : q(a.q.template as<S>() + value_head / n.group() * n.key_dim),
        k(a.k.template as<S>() + value_head / n.group() * n.key_dim),
        v(a.v.template as<S>() + value_head * n.value_dim),
        g(a.g.template as<S>() + value_head),
        beta(a.beta.template as<S>() + value_head),
        key_stride(n.key_heads * n.key_dim),
        value_stride(n.value_heads * n.value_dim),
        gate_stride(n.value_heads) {}
};

/// Asks for `rows` rows of n elements, `stride` apart. Short rows of one head lie far apart, and every head has lines
/// of its own: the processor does not see them come.
template <class S> void prefetch_rows(int64_t rows, int64_t n, const S* from, int64_t stride) {
  constexpr int64_t kLine = 64 / sizeof(S), kShort = 4 * kLine;
  if (n > kShort) { return; }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; j += kLine) { __builtin_prefetch(from + i * stride + j); }
  }
}

/// `rows` rows of n elements, `stride` apart, times factor, without gaps.
template <class S> void gather_rows(int64_t rows, int64_t n, const S* from, int64_t stride, S factor, S* to) {
  for (int64_t i = 0; i < rows; ++i) { scale_row(n, factor, from + i * stride, to + i * n); }
}
template <class S> void gather(int64_t count, const S* from, int64_t stride, S* to) {
  for (int64_t i = 0; i < count; ++i) { to[i] = from[i * stride]; }
}

}  // namespace hebb::cpu::delta
