#pragma once
// Muon's orthogonalisation of a matrix G (docs/layers/lact.md, Orthogonalisation): X = G / (|G|_F + 1e-7), lying, then
// five times X = a X + (b A + c A^2) X with A = X Xᵀ. Of the momenta of a slot, for all pairs and matrices side by
// side; X keeps G's layout, and lies by its strides. In TF32, too, where the rule allows it: of random matrices of 192
// x 192 that moves the result by 1e-3 of its rms and its gradient by 2e-3, and the largest singular value by less than
// 1e-3; rounding G to bf16 moves as much or more.
#include "kernels/lact/memory.cuh"

namespace hebb::HEBB_DEVICE::lact {

constexpr int kMuonSteps = 5;
constexpr double kMuonEps = 1e-7;

struct MuonFactors {
  double a, b, c;
};

inline MuonFactors muon_factors(int step) {
  constexpr MuonFactors kFactors[kMuonSteps] = {{4.0848, -6.8946, 2.9270},
                                                {3.9505, -6.3029, 2.6377},
                                                {3.7418, -5.5913, 2.3037},
                                                {2.8769, -3.1427, 1.2046},
                                                {2.8366, -3.0525, 1.2012}};
  return kFactors[step];
}

/// Of a block that has a matrix to itself: there are fewer of them than SMs, so that latency binds.
#ifdef __SANITIZE_THREAD__  // the emulator's threads: the sanitizer has no room for the state of more
constexpr int kMatrixThreads = 256;
#else
constexpr int kMatrixThreads = 1024;
#endif

/// use(i, load(i)) for i < count by the threads of a block; the loads of four elements are under way together.
template <class Load, class Use> __device__ __forceinline__ void each_of_matrix(int64_t count, Load&& load, Use&& use) {
  constexpr int kAhead = 4;
  for (int64_t first = threadIdx.x; first < count; first += kAhead * kMatrixThreads) {
    decltype(load(first)) loaded[kAhead] = {};
    HEBB_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      if (first + u * kMatrixThreads < count) { loaded[u] = load(first + u * kMatrixThreads); }
    }
    HEBB_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      if (first + u * kMatrixThreads < count) { use(first + u * kMatrixThreads, loaded[u]); }
    }
  }
}

/// The first iterate; one block a matrix of a pair.
template <class S> __global__ void __launch_bounds__(kMatrixThreads) lact_muon_begin_kernel(Fast<S> a, int64_t slot) {
  const int64_t pair = blockIdx.x / 3, m = blockIdx.x % 3;
  if (!a.update(pair, slot).exists) { return; }
  const S* const g = a.momentum_of(pair, slot) + m * a.matrix();
  S squares = 0;
  const auto load = [&](int64_t i) { return g[i]; };
  each_of_matrix(a.matrix(), load, [&](int64_t, S value) { squares += value * value; });
  BlockReducer<S> reduce;
  const S length = std::sqrt(reduce.sum(squares));
  S* const x = a.part(pair, a.at.iterates + m * a.matrix());
  each_of_matrix(a.matrix(), load, [&](int64_t i, S value) { x[i] = value / (length + S(kMuonEps)); });
  if (threadIdx.x == 0) { a.part(pair, a.at.lengths)[m] = length; }
}

/// square: A = X Xᵀ. polynomial: P = b A + c A^2. next: X' = a X + P X. With a gradient dX' at X': d_polynomial: dP =
/// dX' Xᵀ. d_square: dA = b dP + c (dP A + A dP). d_next: dX = a dX' + Pᵀ dX' + (dA + dAᵀ) X.
enum class MuonProduct { square, polynomial, next, d_polynomial, d_square, d_next };

template <class S> struct Muon {
  Fast<S> a;
  int64_t slot;
  MuonProduct product;
  MuonFactors factors;
  int64_t x, to;  // iterates read and written; of d_next the gradients' (0 or 1) written

  /// Of a matrix that lies in memory turned or not: itself as a left side, and with its columns as rows.
  template <bool kIsTurned> struct Sides {
    Operand<kIsTurned, S> rows;
    Operand<!kIsTurned, S> columns;
  };

  template <class Stage> __device__ void operator()(Stage& stage, int64_t batch, int64_t row, int64_t column) const {
    const int64_t pair = batch / 3, m = batch % 3;
    if (!a.update(pair, slot).exists) { return; }
    if (a.rows(m) > a.columns(m)) {
      multiply<true>(stage, pair, m, row, column);
    } else {
      multiply<false>(stage, pair, m, row, column);
    }
  }

  /// kStands: the matrix has more rows than columns, and X is its transpose.
  template <bool kStands, class Stage>
  __device__ __forceinline__ void multiply(Stage& stage, int64_t pair, int64_t m, int64_t row, int64_t column) const {
    const int64_t n = a.fast < a.dim ? a.fast : a.dim, wide = a.longest_side(), stride = a.columns(m);
    const auto sides = [&](const S* data) { return Sides<kStands>{{data, stride, 0, n}, {data, stride, 0, wide}}; };
    const auto square_sides = [&](const S* data) { return Sides<false>{{data, n, 0, n}, {data, n, 0, n}}; };
    const auto squares = [&](int64_t offset) { return a.part(pair, offset) + m * n * n; };
    const S* const from = a.part(pair, a.at.iterates + (3 * x + m) * a.matrix());
    S* const d_to = a.part(pair, a.at.d_iterates + (3 * to + m) * a.matrix());
    const S* const d_from = a.part(pair, a.at.d_iterates + (3 * (1 - to) + m) * a.matrix());
    const Sides<kStands> in = sides(from);
    const Sides<false> square = square_sides(squares(a.at.squares)),
                       polynomial = square_sides(squares(a.at.polynomials));
    const S* add = nullptr;
    S *out = nullptr, factor = 1, added = 0;
    int64_t out_row = n, out_column = 1, width = n;
    typename Stage::Sums sums = {};
    if (product == MuonProduct::square) {
      tile_product(stage, in.rows, row, in.rows, column, wide, sums);
      out = squares(a.at.squares);
    } else if (product == MuonProduct::polynomial) {
      tile_product(stage, square.rows, row, square.columns, column, n, sums);
      out = squares(a.at.polynomials);
      add = square.rows.data;
      factor = S(factors.c);
      added = S(factors.b);
    } else if (product == MuonProduct::next) {
      tile_product(stage, polynomial.rows, row, in.columns, column, n, sums);
      out = a.part(pair, a.at.iterates + (3 * to + m) * a.matrix());
      add = from;
    } else if (product == MuonProduct::d_polynomial) {
      tile_product(stage, sides(d_from).rows, row, in.rows, column, wide, sums);
      out = squares(a.at.d_polynomials);
    } else if (product == MuonProduct::d_square) {
      const Sides<false> d = square_sides(squares(a.at.d_polynomials));
      tile_product(stage, d.rows, row, square.columns, column, n, sums);
      tile_product(stage, square.rows, row, d.columns, column, n, sums);
      out = squares(a.at.d_squares);
      add = d.rows.data;
      factor = S(factors.c);
      added = S(factors.b);
    } else {
      const Sides<false> d = square_sides(squares(a.at.d_squares));
      tile_product(stage, polynomial.columns, row, sides(d_from).columns, column, n, sums);
      tile_product(stage, d.rows, row, in.columns, column, n, sums);
      tile_product(stage, d.columns, row, in.columns, column, n, sums);
      out = d_to;
      add = d_from;
    }
    if (product == MuonProduct::next || product == MuonProduct::d_next) {
      out_row = kStands ? 1 : stride;
      out_column = kStands ? stride : 1;
      width = wide;
      added = S(factors.a);
    }
    tile_each(stage, row, column, n, width, [&](int64_t r, int64_t c, int i, int j) {
      const int64_t at = r * out_row + c * out_column;
      out[at] = factor * sums[i][j] + (add != nullptr ? added * add[at] : S(0));
    });
  }
};

template <class S>
void muon_product(Stream& stream, const Fast<S>& a, int64_t slot, MuonProduct product, int step, int64_t x,
                  int64_t to) {
  const bool is_wide = product == MuonProduct::next || product == MuonProduct::d_next;
  const int64_t n = a.fast < a.dim ? a.fast : a.dim;
  each_tile<S>("lact_muon", stream, a.tf32, 3 * a.pairs(), n, is_wide ? a.longest_side() : n,
               Muon<S>{a, slot, product, muon_factors(step), x, to});
}

/// Fills the iterates of a slot, all (backward) or the last two; returns the number of the last.
template <class S> int64_t run_muon(Stream& stream, const Fast<S>& a, int64_t slot, bool keeps) {
  if (!a.has_muon) { return 0; }
  const auto place = [&](int step) { return keeps ? step : step % 2; };
  HEBB_LAUNCH(lact_muon_begin_kernel<S>, blocks_for(3 * a.pairs(), 1), kMatrixThreads, 0, stream, a, slot);
  for (int step = 0; step < kMuonSteps; ++step) {
    muon_product(stream, a, slot, MuonProduct::square, step, place(step), 0);
    muon_product(stream, a, slot, MuonProduct::polynomial, step, place(step), 0);
    muon_product(stream, a, slot, MuonProduct::next, step, place(step), place(step + 1));
  }
  return place(kMuonSteps);
}

/// The weights behind the update of a slot. One launch or two of tiles, 12 h D FLOPs a token and head; rows by warps,
/// bound by HBM.
template <class S> void run_update(Stream& stream, const Fast<S>& a, int64_t slot, bool keeps) {
  each_tile<S>("lact_gather_hidden", stream, a.tf32, a.pairs(), a.at.window, a.fast, GatherHidden<S>{a, slot});
  each_tile<S>("lact_gather_sums", stream, a.tf32, 3 * a.pairs(), a.longest_side(), a.longest_side(),
               GatherSums<S>{a, slot});
  if (slot < a.at.slots) {
    const int64_t last = run_muon(stream, a, slot, keeps);
    each_warp("lact_move", stream, a.pairs() * (2 * a.fast + a.dim), Move<S>{a, slot, last});
  }
}

}  // namespace hebb::HEBB_DEVICE::lact
