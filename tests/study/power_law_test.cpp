#include "study/report/power_law.h"

#include <cmath>

#include "core/error.h"
#include "core/random.h"
#include "tests/test.h"

namespace {

const std::vector<double> kFlops = {1.0e18, 1.6e18, 4.1e18, 6.9e18,
                                    1.6e19, 3.2e19, 1.3e20};  // seven points like the SDM ladder's

std::vector<double> power(double a, double b, double c = 0) {
  std::vector<double> y;
  for (const double x : kFlops) { y.push_back(a * std::pow(x, -b) + c); }
  return y;
}

bool contains(const Interval& i, double v) { return i.low <= v && v <= i.high; }

}  // namespace

TEST_CASE("a fit finds the coefficients of points without noise", "[fast]") {
  const PowerLawFit fit = fit_power_law(kFlops, power(30.5, 0.057), {5.3e21}, false);
  CHECK(fit.a == Approx(30.5).epsilon(1e-9));
  CHECK(fit.b == Approx(0.057).epsilon(1e-9));
  CHECK(fit.c == 0);
  CHECK(fit.r2 == Approx(1).epsilon(1e-12));
  // Residuals are rounding: the intervals have no width beyond it.
  CHECK(fit.b_interval->high - fit.b_interval->low < 1e-12);
  CHECK(fit.predictions[0].y == Approx(30.5 * std::pow(5.3e21, -0.057)).epsilon(1e-9));
  CHECK(fit.predictions[0].interval->high - fit.predictions[0].interval->low < 1e-10);
}

TEST_CASE("a fit with an offset finds the coefficients of points without noise", "[fast]") {
  const PowerLawFit fit = fit_power_law(kFlops, power(5000, 0.2, 1.7), {5.3e21}, true);
  CHECK(fit.a == Approx(5000).epsilon(1e-6));
  CHECK(fit.b == Approx(0.2).epsilon(1e-6));
  CHECK(fit.c == Approx(1.7).epsilon(1e-6));
}

TEST_CASE("as many points as coefficients leave nothing to judge the fit by", "[fast]") {
  for (const PowerLawFit& fit :
       {fit_power_law({1, 2}, {1, 0.5}, {4}, false), fit_power_law({1, 2, 4}, {3, 2, 1.5}, {4}, true)}) {
    CHECK_FALSE(fit.r2);
    CHECK_FALSE(fit.a_interval);
    CHECK_FALSE(fit.b_interval);
    CHECK_FALSE(fit.predictions[0].interval);
    CHECK(fit.interval_method == "none: no degree of freedom is left");
    CHECK(fit.json().at("r2").is_null());
  }
  // Two places with two runs at one of them: their difference is what is left.
  const PowerLawFit fit = fit_power_law({1, 1, 2}, {1, 1.1, 0.5}, {4}, false);
  CHECK(fit.r2 < 1);
  CHECK(fit.b_interval);
}

TEST_CASE("intervals of 1,000 simulated ladders of seven points contain the truth in 93 to 97 %", "[fast]") {
  constexpr double kNoise = 0.004, kPredicted = 5.3e21;
  constexpr int kLadders = 1000;
  const bool has_offset = GENERATE(false, true);
  const double a = has_offset ? 5000 : 30.5, b = has_offset ? 0.2 : 0.057, c = has_offset ? 1.7 : 0;
  const std::vector<double> truth = power(a, b, c);
  int in_a = 0, in_b = 0, in_prediction = 0;
  for (int ladder = 0; ladder < kLadders; ++ladder) {
    Rng noise(7, "simulated ladder", static_cast<uint64_t>(ladder));
    std::vector<double> y = truth;
    for (double& v : y) { v *= std::exp(kNoise * noise.normal()); }
    const double measured = (a * std::pow(kPredicted, -b) + c) * std::exp(kNoise * noise.normal());
    const PowerLawFit fit = fit_power_law(kFlops, y, {kPredicted}, has_offset);
    in_a += contains(*fit.a_interval, a) ? 1 : 0;
    in_b += contains(*fit.b_interval, b) ? 1 : 0;
    in_prediction += contains(*fit.predictions[0].interval, measured) ? 1 : 0;
  }
  for (const int inside : {in_a, in_b, in_prediction}) {
    CHECK(inside >= 930);
    CHECK(inside <= 970);
  }
}

TEST_CASE("a point that fixes the line by itself leaves the intervals finite", "[fast]") {
  const PowerLawFit fit = fit_power_law({1, 1, 1, 1, 2}, {2, 2.1, 2.2, 2.05, 1.5}, {3}, false);
  CHECK(fit.b_interval->low < fit.b);
  CHECK(fit.b_interval->high > fit.b);
  CHECK(std::isfinite(fit.predictions[0].interval->low));
  CHECK(std::isfinite(fit.predictions[0].interval->high));
}

TEST_CASE("intervals are Student's t, and one point is an error", "[fast]") {
  const std::vector<double> x = {1, 2, 4, 8};
  // ln y = -0.5 ln x plus residuals of +-0.01 that are orthogonal to the line
  const std::vector<double> y = {std::exp(0.01), std::exp(-0.5 * std::log(2.0) - 0.01),
                                 std::exp(-0.5 * std::log(4.0) - 0.01), std::exp(-0.5 * std::log(8.0) + 0.01)};
  const PowerLawFit fit = fit_power_law(x, y, {}, false);
  CHECK(fit.interval_method == "student t");
  const double spread = 5 * std::log(2.0) * std::log(2.0);  // of ln x
  const double width = 2 * 4.302652729911275 * std::sqrt(4e-4 / 2 / spread);
  CHECK(fit.b == Approx(0.5).epsilon(1e-12));
  CHECK(fit.b_interval->high - fit.b_interval->low == Approx(width).epsilon(1e-9));
  CHECK_THROWS_WITH(fit_power_law({1, 1}, {1, 2}, {}, false), Contains("1 distinct x") && Contains("at least 2"));
  CHECK_THROWS_WITH(fit_power_law({1, 2}, {1, -2}, {}, false), Contains("not positive"));
}
