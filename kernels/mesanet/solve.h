#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gated_delta/chunk.h"
#include "kernels/mesanet/mesanet.h"

/// Solutions of symmetric positive definite systems, one a row (docs/layers/mesanet.md, Solve).
namespace hebb::cpu::mesa {

/// Conjugate gradients on up to `rows` systems of n unknowns together, each on scalars of its own.
template <class S> class ConjugateGradients {
 public:
  ConjugateGradients(ScratchParts<S>& parts, int64_t rows, int64_t n)
      : n_(n),
        residual_(parts.take(rows * n)),
        direction_(parts.take(rows * n)),
        product_(parts.take(rows * n)),
        power_(parts.take(rows)),
        first_(parts.take(rows)),
        square_(parts.take(rows)) {}

  /// x [rows, n] from b [rows, n] (not the same memory). apply(p, t): t [rows, n] = p A, rows by their own A.
  template <class Apply> void solve(int64_t rows, const MesanetRule& rule, const S* b, S* x, Apply&& apply) {
    begin(rows, b, x);
    for (int64_t step = 0; step < rule.steps; ++step) {
      if (std::all_of(square_, square_ + rows, [](S square) { return square == S(0); })) { break; }
      apply(direction_, product_);
      for (int64_t i = 0; i < rows; ++i) {
        if (square_[i] != S(0)) { advance(i, static_cast<S>(rule.epsilon), x + i * n_); }
      }
    }
    for (int64_t i = 0; i < rows; ++i) { delta::scale_row(n_, S(1) / power_[i], x + i * n_, x + i * n_); }
  }

 private:
  /// Right-hand sides are scaled by powers of two, which changes no digit: squares of small ones would underflow.
  void begin(int64_t rows, const S* b, S* x) {
    for (int64_t i = 0; i < rows; ++i) {
      S largest(0);
      for (int64_t c = 0; c < n_; ++c) { largest = std::max(largest, std::abs(b[i * n_ + c])); }
      constexpr int kLimit = std::numeric_limits<S>::max_exponent - 2;
      power_[i] = largest > S(0) ? std::ldexp(S(1), std::clamp(-std::ilogb(largest), -kLimit, kLimit)) : S(1);
      delta::scale_row(n_, power_[i], b + i * n_, residual_ + i * n_);
      std::copy_n(residual_ + i * n_, n_, direction_ + i * n_);
      std::fill_n(x + i * n_, n_, S(0));
      first_[i] = square_[i] = dot_row(n_, residual_ + i * n_, residual_ + i * n_);
    }
  }

  void advance(int64_t i, S epsilon, S* x) {
    S *r = residual_ + i * n_, *p = direction_ + i * n_;
    const S* t = product_ + i * n_;
    const S damping = epsilon * first_[i], old = square_[i];
    const Vec<S> alpha(old / (dot_row(n_, p, t) + damping));
    Vec<S> total(S(0));
    vector_loop<S>(n_, [&](int64_t c, auto lanes) {
      store(x + c, fma(alpha, load(p + c, lanes), load(x + c, lanes)), lanes);
      const Vec<S> left = fma(-alpha, load(t + c, lanes), load(r + c, lanes));
      store(r + c, left, lanes);
      total = fma(left, left, total);
    });
    const S square = sum(total);
    const Vec<S> beta(square / (old + damping));
    vector_loop<S>(
        n_, [&](int64_t c, auto lanes) { store(p + c, fma(beta, load(p + c, lanes), load(r + c, lanes)), lanes); });
    constexpr S kUnit = std::numeric_limits<S>::epsilon();
    square_[i] = square <= kUnit * kUnit * first_[i] ? S(0) : square;  // 0: frozen
  }

  int64_t n_;
  S *residual_, *direction_, *product_;
  S *power_, *first_, *square_;  // [rows]: the scale, r.r at the start and now
};

/// x A = b for one symmetric positive definite A = matrix + diag(lambda), of which the lower triangle is read.
template <class S> class Cholesky {
 public:
  Cholesky(ScratchParts<S>& parts, int64_t n) : n_(n), factor_(parts.take(n * n)) {}

  void solve(const S* matrix, const S* lambda, const S* b, S* x) {
    for (int64_t i = 0; i < n_; ++i) {
      S* row = factor_ + i * n_;
      for (int64_t j = 0; j <= i; ++j) {
        const S rest = matrix[i * n_ + j] + (i == j ? lambda[i] : S(0)) - dot_row(j, row, factor_ + j * n_);
        row[j] = i == j ? std::sqrt(rest) : rest / factor_[j * n_ + j];
      }
      x[i] = (b[i] - dot_row(i, row, x)) / row[i];
    }
    for (int64_t i = n_ - 1; i >= 0; --i) {
      x[i] /= factor_[i * n_ + i];
      delta::add_row(i, -x[i], factor_ + i * n_, x);
    }
  }

 private:
  int64_t n_;
  S* factor_;  // [n, n], lower triangle
};

}  // namespace hebb::cpu::mesa
