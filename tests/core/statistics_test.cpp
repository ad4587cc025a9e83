#include "core/statistics.h"

#include <cmath>

#include "tests/test.h"

// Values of scipy 1.17 (stats.t.sf, ttest_rel, binomtest().proportion_ci) unless a line says something else.

TEST_CASE("tails of Student's t are those of tables", "[fast]") {
  CHECK(student_tail(0, 5) == 1);
  CHECK(student_tail(1, 1) == Approx(0.5).epsilon(1e-13));
  CHECK(student_tail(-2.5, 3) == Approx(0.08770664700806556).epsilon(1e-13));
  CHECK(student_tail(0.1, 7) == Approx(0.9231480596047924).epsilon(1e-13));
  CHECK(student_tail(4, 40) == Approx(0.00026591239566669807).epsilon(1e-12));
  CHECK(student_tail(6, 1000) == Approx(2.7553691733774752e-09).epsilon(1e-10));
  CHECK(student_tail(1e-5, 2) == Approx(0.9999929289321883).epsilon(1e-14));
  CHECK(student_tail(1.96, 100000) == Approx(0.04999856319430168).epsilon(1e-10));
  CHECK(student_tail(INFINITY, 4) == 0);
  // One and two degrees of freedom have closed forms.
  for (const double t : {0.01, 0.9, 3.0, 60.0, 1e6}) {
    CHECK(student_tail(t, 1) == Approx(2 / 3.14159265358979324 * std::atan2(1, t)).epsilon(1e-12));
    const double s = std::sqrt(2 + t * t);
    CHECK(student_tail(t, 2) == Approx(2 / (s * (s + t))).epsilon(1e-12));
  }
}

TEST_CASE("quantiles of Student's t are those of tables", "[fast]") {
  CHECK(student_quantile(1) == Approx(std::tan(0.475 * 3.14159265358979324)).epsilon(1e-12));
  CHECK(student_quantile(2) == Approx(4.302652729749462).epsilon(1e-12));
  CHECK(student_quantile(3) == Approx(3.1824463052837078).epsilon(1e-12));
  CHECK(student_quantile(4) == Approx(2.7764451051977934).epsilon(1e-12));
  CHECK(student_quantile(30) == Approx(2.0422724563012378).epsilon(1e-12));
  CHECK(student_quantile(1000) == Approx(1.9623390808264083).epsilon(1e-11));
  CHECK(student_quantile(6, 0.001) == Approx(5.95881617881889).epsilon(1e-11));
}

TEST_CASE("a sample's mean has a deviation and an interval from two values on", "[fast]") {
  const SampleMean one = sample_mean(std::vector<double>{2.5});
  CHECK(one.mean == 2.5);
  CHECK(one.n == 1);
  CHECK_FALSE(one.deviation);
  CHECK_FALSE(one.half);
  CHECK_FALSE(one.standard_error());
  const SampleMean three = sample_mean(std::vector<double>{1, 2, 3});
  CHECK(three.mean == 2);
  CHECK(*three.deviation == 1);
  CHECK(*three.half == Approx(4.302652729749462 / std::sqrt(3.0)));
}

TEST_CASE("a paired test is that of the differences", "[fast]") {
  const std::vector<double> a = {5.1, 4.9, 5.6, 5.0}, b = {4.8, 4.7, 5.1, 5.05};
  const PairedTest test = paired_test(a, b);
  CHECK(test.difference.mean == Approx(0.2375));
  CHECK(*test.difference.deviation == Approx(0.22867371223353727));
  CHECK(test.difference.mean - *test.difference.half == Approx(-0.1263709053065652));
  CHECK(*test.p == Approx(0.12934879800648108));
  CHECK_FALSE(paired_test(std::vector<double>{1}, std::vector<double>{2}).p);
  CHECK(*paired_test(a, a).p == 1);
  CHECK(*paired_test(std::vector<double>{2, 3}, std::vector<double>{1, 2}).p == 0);
}

TEST_CASE("Holm's correction multiplies the smallest by all, and never falls", "[fast]") {
  CHECK(holm(std::vector<double>{}).empty());
  const std::vector<double> p = holm(std::vector<double>{0.01, 0.04, 0.03, 0.005});
  // By hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04, which is not below the one before.
  CHECK(p[0] == Approx(0.03));
  CHECK(p[1] == Approx(0.06));
  CHECK(p[2] == Approx(0.06));
  CHECK(p[3] == Approx(0.02));
  CHECK(holm(std::vector<double>{0.6, 0.9})[0] == 1);
}

TEST_CASE("Wilson's interval of a share is not empty at 0 and 1", "[fast]") {
  CHECK(wilson(0, 60).low == Approx(0).margin(1e-15));
  CHECK(wilson(0, 60).high == Approx(0.06017185214208986));
  CHECK(wilson(1, 60).low == Approx(0.9398281478579101));
  CHECK(wilson(1, 60).high == Approx(1));
  CHECK(wilson(7.0 / 20, 20).low == Approx(0.1811918241010821));
  CHECK(wilson(7.0 / 20, 20).high == Approx(0.5671457233147637));
}
