#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/gated_delta/chunk.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/gemm/kernel.h"

namespace hebb::cpu {

/// Muon's orthogonalisation of a matrix G (docs/layers/lact.md, Orthogonalisation): X = G / (|G|_F + 1e-7), lying, then
/// five times X = a X + (b A + c A^2) X with A = X Xᵀ. For matrices of one number of elements, whatever their
/// orientation.
template <class S> class NewtonSchulz {
 public:
  /// keeps: room for the iterates that backward needs.
  NewtonSchulz(ScratchParts<S>& parts, int64_t rows, int64_t columns, bool keeps)
      : size_(rows * columns), keeps_(keeps) {
    const int64_t n = std::min(rows, columns);
    iterates_ = parts.take(size_ * (keeps ? kSteps + 1 : 2));
    turned_ = parts.take(size_);
    squares_ = parts.take(n * n * (keeps ? kSteps : 1));
    polynomials_ = parts.take(n * n * (keeps ? kSteps : 1));
    if (keeps) {
      d_x_ = parts.take(size_);
      d_next_ = parts.take(size_);
      d_polynomial_ = parts.take(n * n);
      d_square_ = parts.take(n * n);
      product_ = parts.take(n * n);
    }
  }

  /// Returns NS(g) [rows, columns], valid until the next call.
  const S* forward(int64_t rows, int64_t columns, const S* g) {
    const bool turns = rows > columns;
    const int64_t n = std::min(rows, columns), m = std::max(rows, columns);
    norm_ = std::sqrt(dot_row(size_, g, g));
    if (turns) {
      transpose(rows, columns, g, iterate(0));
      delta::scale_row(size_, S(1) / (norm_ + static_cast<S>(kEps)), iterate(0), iterate(0));
    } else {
      delta::scale_row(size_, S(1) / (norm_ + static_cast<S>(kEps)), g, iterate(0));
    }
    for (int step = 0; step < kSteps; ++step) {
      const S *x = iterate(step), a = static_cast<S>(kFactors[step][0]);
      S* next = iterate(step + 1);
      make_polynomial(step, n, m, x);
      delta::scale_row(size_, a, x, next);
      gemm_serial<S>(false, false, n, m, n, S(1), kept(polynomials_, step, n), n, x, m, true, next, m);
    }
    if (!turns) { return iterate(kSteps); }
    transpose(n, m, iterate(kSteps), turned_);
    return turned_;
  }

  /// d_g = the gradient at g of the last forward call, from that at its result; d_g may be d_out.
  void backward(int64_t rows, int64_t columns, const S* g, const S* d_out, S* d_g) {
    const bool turns = rows > columns;
    const int64_t n = std::min(rows, columns), m = std::max(rows, columns);
    if (turns) {
      transpose(rows, columns, d_out, d_x_);
    } else {
      std::copy_n(d_out, size_, d_x_);
    }
    for (int step = kSteps - 1; step >= 0; --step) { step_back(step, n, m); }
    const S* d = d_x_;
    if (turns) {
      transpose(n, m, d_x_, turned_);
      d = turned_;
    }
    const S length = norm_ + static_cast<S>(kEps);
    const S back = norm_ > S(0) ? -dot_row(size_, d, g) / (length * length * norm_) : S(0);
    vector_loop<S>(size_, [&](int64_t i, auto lanes) {
      store(d_g + i, fma(Vec<S>(back), load(g + i, lanes), load(d + i, lanes) * Vec<S>(S(1) / length)), lanes);
    });
  }

 private:
  static constexpr int kSteps = 5;
  static constexpr double kEps = 1e-7;
  static constexpr double kFactors[kSteps][3] = {{4.0848, -6.8946, 2.9270},
                                                 {3.9505, -6.3029, 2.6377},
                                                 {3.7418, -5.5913, 2.3037},
                                                 {2.8769, -3.1427, 1.2046},
                                                 {2.8366, -3.0525, 1.2012}};

  S* iterate(int step) { return iterates_ + (keeps_ ? step : step % 2) * size_; }

  S* kept(S* of_steps, int step, int64_t n) const { return of_steps + (keeps_ ? step : 0) * n * n; }

  /// A = X Xᵀ and P = b A + c A^2. Both are symmetric to the bit: entries (i, j) and (j, i) are sums of the same
  /// products in the same order.
  void make_polynomial(int step, int64_t n, int64_t m, const S* x) {
    const S b = static_cast<S>(kFactors[step][1]), c = static_cast<S>(kFactors[step][2]);
    S *square = kept(squares_, step, n), *polynomial = kept(polynomials_, step, n);
    symmetric_product(n, square, [&](int64_t first, int64_t width) {
      gemm_serial<S>(false, true, n - first, width, m, S(1), x + first * m, m, x + first * m, m, false,
                     square + first * n + first, n);
    });
    delta::scale_row(n * n, b, square, polynomial);
    symmetric_product(n, polynomial, [&](int64_t first, int64_t width) {
      gemm_serial<S>(false, false, n - first, width, n, c, square + first * n, n, square + first, n, true,
                     polynomial + first * n + first, n);
    });
  }

  /// product(first, width) computes columns [first, first + width) of a symmetric matrix [n, n] from row `first` on.
  template <class F> static void symmetric_product(int64_t n, S* matrix, F&& product) {
    const bool mirrors = n % Vec<S>::width == 0;  // in whole vectors
    const int64_t panel = mirrors ? (n > 64 ? 32 : 16) : n;
    for (int64_t first = 0; first < n; first += panel) {
      const int64_t last = std::min(n, first + panel);
      product(first, last - first);
      gemm::pack_transposed<S>(last - first, static_cast<int>(n - last), matrix + last * n + first, n,
                               matrix + first * n + last, static_cast<int>(n));
    }
  }

  /// dP = dX' Xᵀ, Q = dP + dPᵀ, dA + dAᵀ = b Q + c (Q A + (Q A)ᵀ), dX = a dX' + P dX' + (dA + dAᵀ) X.
  void step_back(int step, int64_t n, int64_t m) {
    const S a = static_cast<S>(kFactors[step][0]), b = static_cast<S>(kFactors[step][1]),
            c = static_cast<S>(kFactors[step][2]);
    const S *x = iterate(step), *square = kept(squares_, step, n), *polynomial = kept(polynomials_, step, n);
    gemm_serial<S>(false, true, n, n, m, S(1), d_x_, m, x, m, false, product_, n);
    add_transpose(n, product_, d_polynomial_);
    gemm_serial<S>(false, false, n, n, n, c, d_polynomial_, n, square, n, false, product_, n);
    add_transpose(n, product_, d_square_);
    delta::add_row(n * n, b, d_polynomial_, d_square_);
    delta::scale_row(size_, a, d_x_, d_next_);
    gemm_serial<S>(false, false, n, m, n, S(1), polynomial, n, d_x_, m, true, d_next_, m);
    gemm_serial<S>(false, false, n, m, n, S(1), d_square_, n, x, m, true, d_next_, m);
    std::swap(d_x_, d_next_);
  }

  /// to = M + Mᵀ, both [n, n].
  static void add_transpose(int64_t n, const S* m, S* to) {
    constexpr int64_t w = Vec<S>::width;
    const int64_t whole = n / w * w;
    for (int64_t i = 0; i < whole; i += w) {
      for (int64_t j = 0; j < whole; j += w) {
        Vec<S> block[w];
#pragma GCC unroll 16
        for (int64_t r = 0; r < w; ++r) { block[r] = load(m + (j + r) * n + i); }
        gemm::transpose(block);
#pragma GCC unroll 16
        for (int64_t r = 0; r < w; ++r) { store(to + (i + r) * n + j, load(m + (i + r) * n + j) + block[r]); }
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i < whole ? whole : 0; j < n; ++j) { to[i * n + j] = m[i * n + j] + m[j * n + i]; }
    }
  }

  static void transpose(int64_t rows, int64_t columns, const S* from, S* to) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) { to[j * rows + i] = from[i * columns + j]; }
    }
  }

  int64_t size_;
  bool keeps_;
  S norm_ = S(0);
  S *iterates_, *turned_, *squares_, *polynomials_;
  S *d_x_ = nullptr, *d_next_ = nullptr, *d_polynomial_ = nullptr, *d_square_ = nullptr, *product_ = nullptr;
};

}  // namespace hebb::cpu
