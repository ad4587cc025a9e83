#include "kernels/gemm/bench.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "core/parallel.h"
#include "core/random.h"
#include "core/stream.h"
#include "kernels/common/cpu/vec.h"
#include "kernels/gemm/gemm_cpu.h"

namespace hebb::cpu {
namespace {

double seconds_of(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Enough independent chains to cover the latency of two multiply-add units.
constexpr int kChains = 12;
constexpr int64_t kSteps = 100000;

template <class S> S multiply_adds(S start) {
  // Different values, or the compiler would keep one chain.
  Vec<S> x(start * S(0.999)), y(start), sums[kChains];
  for (int i = 0; i < kChains; ++i) { sums[i] = Vec<S>(start * S(i)); }
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) { sums[i] = fma(sums[i], x, y); }
  }
  Vec<S> total = sums[0];
  for (int i = 1; i < kChains; ++i) { total += sums[i]; }
  return sum(total);
}

template <class S> double peak_gflops() {
  std::vector<S> results(static_cast<size_t>(threads()));
  const double time = seconds_of(
      [&] { parallel_each(threads(), 1, [&](int64_t i) { results[static_cast<size_t>(i)] = multiply_adds(S(1)); }); });
  // The sum is positive; using it keeps the loop.
  return results[0] > S(0) ? 2e-9 * kSteps * kChains * Vec<S>::width * threads() / time : 0;
}

template <class S> GemmRate measure(const GemmShape& g, double seconds) {
  Rng rng(1, "gemm_bench");
  std::vector<S> a(static_cast<size_t>(g.m * g.k)), b(static_cast<size_t>(g.k * g.n)),
      c(static_cast<size_t>(g.m * g.n));
  for (S& x : a) { x = static_cast<S>(rng.uniform() - 0.5); }
  for (S& x : b) { x = static_cast<S>(rng.uniform() - 0.5); }
  GemmRate rate{g, threads(), 0, 0};
  const double flop = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  double spent = 0;
  // Alternating, so that both meet the same clock rate.
  while (spent < seconds) {
    rate.peak_gflops = std::max(rate.peak_gflops, peak_gflops<S>());
    for (double part = 0; part < seconds / 4;) {
      const double time = seconds_of([&] {
        gemm_parallel<S>(g.trans_a, g.trans_b, g.m, g.n, g.k, S(1), a.data(), g.trans_a ? g.m : g.k, b.data(),
                         g.trans_b ? g.k : g.n, false, c.data(), g.n);
      });
      rate.gflops = std::max(rate.gflops, flop * 1e-9 / time);
      part += time;
      spent += time;
    }
  }
  return rate;
}

}  // namespace

std::vector<GemmRate> measure_gemm(DType dtype, const std::vector<GemmShape>& shapes, double seconds) {
  std::vector<GemmRate> rates;
  dispatch_real(dtype, [&]<class S>(S) {
    for (const GemmShape& shape : shapes) { rates.push_back(measure<S>(shape, seconds)); }
  });
  return rates;
}

}  // namespace hebb::cpu
