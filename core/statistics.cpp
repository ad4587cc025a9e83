#include "core/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace hebb {
namespace {

/// The regularised incomplete beta function I_x(a, b) for x below (a + 1) / (a + b + 2), where its continued fraction
/// converges fast. `rest`: 1 - x, which x may be too near to 1 to tell.
double small_beta(double x, double rest, double a, double b) {
  constexpr double kTiny = 1e-300, kEnough = 1e-16;
  constexpr int kMost = 10000;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log(rest)) / a;
  const auto away = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1, d = 1 / away(1 - (a + b) * x / (a + 1)), f = d;  // Lentz's method
  for (int m = 1; m < kMost; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / away(1 + even * d);
    c = away(1 + even / c);
    f *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / away(1 + odd * d);
    c = away(1 + odd / c);
    f *= d * c;
    if (std::abs(d * c - 1) < kEnough) { break; }
  }
  return front * f;
}

}  // namespace

double student_tail(double t, double freedom) {
  HEBB_ASSERT(freedom >= 1);
  const double squared = t * t, x = freedom / (freedom + squared), rest = squared / (freedom + squared);
  if (rest == 0) { return 1; }
  if (!(x > 0)) { return 0; }
  const double a = freedom / 2, b = 0.5;
  return x < (a + 1) / (a + b + 2) ? small_beta(x, rest, a, b) : 1 - small_beta(rest, x, b, a);
}

double student_quantile(double freedom, double tail) {
  HEBB_ASSERT(tail > 0 && tail < 1);
  double low = 0, high = 1;
  while (student_tail(high, freedom) > tail) { high *= 2; }
  for (double middle = high / 2; middle > low && middle < high; middle = (low + high) / 2) {
    (student_tail(middle, freedom) > tail ? low : high) = middle;
  }
  return high;
}

std::optional<double> SampleMean::standard_error() const {
  if (!deviation) { return std::nullopt; }
  return *deviation / std::sqrt(static_cast<double>(n));
}

SampleMean sample_mean(std::span<const double> values) {
  HEBB_ASSERT(!values.empty());
  SampleMean s;
  s.n = static_cast<int64_t>(values.size());
  const auto n = static_cast<double>(s.n);
  s.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (s.n < 2) { return s; }
  double squares = 0;
  for (const double value : values) { squares += (value - s.mean) * (value - s.mean); }
  s.deviation = std::sqrt(squares / (n - 1));
  s.half = student_quantile(n - 1) * *s.standard_error();
  return s;
}

PairedTest paired_test(std::span<const double> values, std::span<const double> others) {
  HEBB_ASSERT(values.size() == others.size());
  std::vector<double> differences;
  for (size_t i = 0; i < values.size(); ++i) { differences.push_back(values[i] - others[i]); }
  PairedTest test{sample_mean(differences), std::nullopt};
  const SampleMean& d = test.difference;
  if (d.n < 2) { return test; }
  const double error = *d.standard_error();
  test.p = error > 0 ? student_tail(d.mean / error, static_cast<double>(d.n - 1)) : d.mean == 0 ? 1 : 0;
  return test;
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> corrected(p.size());
  double largest = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    largest = std::max(largest, std::min(1.0, static_cast<double>(order.size() - rank) * p[order[rank]]));
    corrected[order[rank]] = largest;
  }
  return corrected;
}

Interval wilson(double share, double n) {
  constexpr double kNormal = 1.959963984540054;  // 97.5 % of the standard normal distribution
  const double z2 = kNormal * kNormal / n, middle = (share + z2 / 2) / (1 + z2);
  const double half = kNormal / (1 + z2) * std::sqrt(share * (1 - share) / n + z2 / (4 * n));
  return {share == 0 ? 0 : std::max(0.0, middle - half), share == 1 ? 1 : std::min(1.0, middle + half)};
}

}  // namespace hebb
