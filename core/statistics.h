#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hebb {

/// From `low` to `high`, both included.
struct Interval {
  double low = 0, high = 0;
};

/// The probability that Student's t with `freedom` degrees of freedom (at least 1) is as far from 0 as `t`, on either
/// side. Source: Abramowitz and Stegun, 26.7.1 and 26.5.8.
double student_tail(double t, double freedom);
/// The t above 0 with student_tail(t, freedom) = `tail` (in (0, 1)): 2.776 for 4 degrees of freedom and 0.05.
double student_quantile(double freedom, double tail = 0.05);

/// Mean of a sample (at least one value), and how well it is known. One value leaves no degree of freedom.
struct SampleMean {
  double mean = 0;
  int64_t n = 0;
  std::optional<double> deviation;  // sample standard deviation, n - 1 in the denominator
  std::optional<double> half;       // half the width of the 95 % interval, Student's t

  std::optional<double> standard_error() const;
};
SampleMean sample_mean(std::span<const double> values);

/// The mean difference of pairs with its 95 % interval and the two-sided p of Student's paired t test. A single pair
/// has neither. Pairs that all differ by the same have p 0, and 1 where that is 0.
struct PairedTest {
  SampleMean difference;
  std::optional<double> p;
};
/// values[i] - others[i], as many of each.
PairedTest paired_test(std::span<const double> values, std::span<const double> others);

/// p values of several tests, corrected by Holm's step-down method, in the order given. Source: Holm, "A simple
/// sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979.
std::vector<double> holm(std::span<const double> p);

/// Wilson's 95 % score interval of a share of `n` (at least 1) examples: [0, 0.060] for 0 of 60. Source: Wilson,
/// "Probable inference, the law of succession, and statistical inference", J. Am. Stat. Assoc. 22, 1927.
Interval wilson(double share, double n);

}  // namespace hebb
