#include "kernels/adamw/adamw.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"

namespace hebb::cpu {
namespace {

template <class S> struct Factors { S b1, b2, one_b1, one_b2, clip, eps, keep, step, inv_c2; };

/// A function of its own, since compilers vectorise what they know not to overlap.
template <class S>
void update(int64_t n, const Factors<S> f, S* __restrict p, S* __restrict m, S* __restrict v,
            const S* __restrict grad) {
  for (int64_t i = 0; i < n; ++i) {
    const S g = f.clip * grad[i];
    m[i] = f.b1 * m[i] + f.one_b1 * g;
    v[i] = f.b2 * v[i] + f.one_b2 * g * g;
    p[i] = p[i] * f.keep - f.step * m[i] / (std::sqrt(v[i] * f.inv_c2) + f.eps);
  }
}

}  // namespace

void run(Stream&, const SumSquares& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) {
    const int64_t n = args.x.numel();
    const S* x = args.x.as<S>();
    double* partial = args.partial.as<double>();
    parallel_each(args.partial.numel(), 1, [&](int64_t b) {
      const S* block = x + b * kSumSquaresBlock;
      const int64_t size = std::min(kSumSquaresBlock, n - b * kSumSquaresBlock);
      partial[b] = lane_sum<double>(size, [&](int64_t i) { return double(block[i]) * double(block[i]); });
    });
  });
}

void run(Stream&, const DecideStep& a) {
  double *outcome = a.outcome.as<double>(), loss = 0;
  if (a.row_loss.defined()) {
    const double* losses = a.row_loss.as<double>();
    loss = std::accumulate(losses, losses + a.row_loss.numel(), 0.0) * *a.scale.as<double>();
  }
  bool applies = std::isfinite(loss);
  const double* next = a.partial.as<double>();
  for (int64_t s = 0; s < a.limits.numel(); ++s) {
    const double* end = a.partial.as<double>() + a.ends.as<int64_t>()[s];
    const double norm = std::sqrt(std::accumulate(next, end, 0.0)), limit = a.limits.as<double>()[s];
    next = end;
    applies = applies && std::isfinite(norm);
    outcome[2 + 2 * s] = norm;
    outcome[3 + 2 * s] = clip_factor(norm, limit);
  }
  outcome[0] = loss;
  outcome[1] = applies ? 1 : 0;
}

void run(Stream&, const AdamW& a) {
  if (a.applies.defined() && *a.applies.as<double>() == 0) { return; }
  const double* rates = a.rates.as<double>();
  const double factor = a.clip.defined() ? *a.clip.as<double>() : 1.0;
  dispatch_real(a.p.dtype, [&]<class S>(S) {
    const auto number = [](double x) { return static_cast<S>(x); };
    const Factors<S> f{number(a.beta1), number(a.beta2),  number(1 - a.beta1), number(1 - a.beta2), number(factor),
                       number(a.eps),   number(rates[0]), number(rates[1]),    number(rates[2])};
    S *p = a.p.as<S>(), *m = a.m.as<S>(), *v = a.v.as<S>();
    const S* grad = a.grad.as<S>();
    parallel_for(a.p.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      update(end - begin, f, p + begin, m + begin, v + begin, grad + begin);
      if (a.copy.defined()) { std::copy(p + begin, p + end, a.copy.as<S>() + begin); }
    });
  });
}

}  // namespace hebb::cpu
