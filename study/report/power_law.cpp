#include "study/report/power_law.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/quantile.h"
#include "core/random.h"

namespace hebb {
namespace {

/// Least squares v = intercept + slope u.
struct Line {
  double intercept = 0, slope = 0, mean_u = 0, spread = 0;  // spread: sum of (u - mean)^2
  double sum_squares = 0;                                   // of residuals

  double at(double u) const { return intercept + slope * u; }
  double leverage(double u, size_t n) const {
    return 1.0 / static_cast<double>(n) + (u - mean_u) * (u - mean_u) / spread;
  }
};

Line fit_line(const std::vector<double>& u, const std::vector<double>& v) {
  const auto n = static_cast<double>(u.size());
  Line line;
  double mean_v = 0, product = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    line.mean_u += u[i] / n;
    mean_v += v[i] / n;
  }
  for (size_t i = 0; i < u.size(); ++i) {
    line.spread += (u[i] - line.mean_u) * (u[i] - line.mean_u);
    product += (u[i] - line.mean_u) * (v[i] - mean_v);
  }
  line.slope = product / line.spread;
  line.intercept = mean_v - line.slope * line.mean_u;
  for (size_t i = 0; i < u.size(); ++i) {
    const double e = v[i] - line.at(u[i]);
    line.sum_squares += e * e;
  }
  return line;
}

std::vector<double> logs(const std::vector<double>& values, double offset = 0) {
  std::vector<double> result;
  for (const double v : values) { result.push_back(std::log(v - offset)); }
  return result;
}

/// value - q(97.5 %) se ... value - q(2.5 %) se.
Interval studentised(double value, double se, std::vector<double> t) {
  std::sort(t.begin(), t.end());
  return t.empty() ? Interval{value, value}
                   : Interval{value - quantile(t, 0.975) * se, value - quantile(t, 0.025) * se};
}

Interval exponentiated(Interval i) { return {std::exp(i.low), std::exp(i.high)}; }

/// Standard errors over s, the residual standard deviation.
struct ErrorFactors {
  double intercept, slope;
  std::vector<double> predictions;
};

ErrorFactors error_factors(const Line& line, size_t n, const std::vector<double>& u0) {
  ErrorFactors f{std::sqrt(1.0 / static_cast<double>(n) + line.mean_u * line.mean_u / line.spread),
                 1 / std::sqrt(line.spread),
                 {}};
  for (const double u : u0) { f.predictions.push_back(std::sqrt(1 + line.leverage(u, n))); }
  return f;
}

void bootstrap_residuals(PowerLawFit& fit, const Line& line, const std::vector<double>& u, const std::vector<double>& v,
                         const std::vector<double>& u0, const PowerLawOptions& options) {
  const size_t n = u.size();
  std::vector<double> e(n);
  double mean = 0;
  for (size_t i = 0; i < n; ++i) {
    // A point that fixes the line by itself has leverage 1 and a residual of 0, up to rounding.
    const double free = 1 - line.leverage(u[i], n);
    e[i] = free < 1e-9 ? 0.0 : (v[i] - line.at(u[i])) / std::sqrt(free);
    mean += e[i] / static_cast<double>(n);
  }
  for (double& r : e) { r -= mean; }
  const auto deviation = [&](const Line& l) { return std::sqrt(l.sum_squares / static_cast<double>(n - 2)); };
  const double s = deviation(line);
  const ErrorFactors f = error_factors(line, n, u0);
  std::vector<double> t_intercept, t_slope;
  std::vector<std::vector<double>> t_predictions(u0.size());
  for (int64_t k = 0; k < options.resamples; ++k) {
    Rng rng(options.seed, "bootstrap", static_cast<uint64_t>(k));
    std::vector<double> w(n);
    for (size_t i = 0; i < n; ++i) { w[i] = line.at(u[i]) + e[rng.below(static_cast<uint32_t>(n))]; }
    const Line again = fit_line(u, w);
    const double s_again = deviation(again);
    if (s_again == 0) { continue; }
    t_intercept.push_back((again.intercept - line.intercept) / (s_again * f.intercept));
    t_slope.push_back((again.slope - line.slope) / (s_again * f.slope));
    for (size_t p = 0; p < u0.size(); ++p) {
      const double observed = line.at(u0[p]) + e[rng.below(static_cast<uint32_t>(n))];
      t_predictions[p].push_back((again.at(u0[p]) - observed) / (s_again * f.predictions[p]));
    }
  }
  fit.interval_method = "studentised residual bootstrap";
  fit.a_interval = exponentiated(studentised(line.intercept, s * f.intercept, t_intercept));
  const Interval slope = studentised(line.slope, s * f.slope, t_slope);
  fit.b_interval = Interval{-slope.high, -slope.low};
  for (size_t p = 0; p < u0.size(); ++p) {
    fit.predictions[p].interval = exponentiated(studentised(line.at(u0[p]), s * f.predictions[p], t_predictions[p]));
  }
}

void student_intervals(PowerLawFit& fit, const Line& line, size_t n, const std::vector<double>& u0) {
  const double t = student_quantile(static_cast<double>(n - 2));
  const double s = std::sqrt(line.sum_squares / static_cast<double>(n - 2));
  const ErrorFactors f = error_factors(line, n, u0);
  const auto around = [&](double value, double factor) {
    return Interval{value - t * s * factor, value + t * s * factor};
  };
  fit.interval_method = "student t";
  fit.a_interval = exponentiated(around(line.intercept, f.intercept));
  fit.b_interval = around(-line.slope, f.slope);
  for (size_t p = 0; p < u0.size(); ++p) {
    fit.predictions[p].interval = exponentiated(around(line.at(u0[p]), f.predictions[p]));
  }
}

struct OffsetFit {
  double a, b, c, error;
};

OffsetFit with_offset(const std::vector<double>& u, const std::vector<double>& y, double c) {
  const Line line = fit_line(u, logs(y, c));
  OffsetFit fit{std::exp(line.intercept), -line.slope, c, 0};
  for (size_t i = 0; i < u.size(); ++i) {
    const double e = std::log(y[i]) - std::log(std::exp(line.at(u[i])) + c);
    fit.error += e * e;
  }
  return fit;
}

OffsetFit best_offset(const std::vector<double>& u, const std::vector<double>& y) {
  constexpr int kGrid = 1000, kGolden = 60;
  const double lowest = *std::min_element(y.begin(), y.end());
  int best = 0;
  double error = INFINITY;
  for (int k = 0; k < kGrid; ++k) {
    const double e = with_offset(u, y, lowest * k / kGrid).error;
    if (e < error) {
      error = e;
      best = k;
    }
  }
  double low = lowest * std::max(0, best - 1) / kGrid, high = lowest * std::min(kGrid - 1, best + 1) / kGrid;
  const double golden = (std::sqrt(5.0) - 1) / 2;
  double c1 = high - golden * (high - low), c2 = low + golden * (high - low);
  double e1 = with_offset(u, y, c1).error, e2 = with_offset(u, y, c2).error;
  for (int i = 0; i < kGolden; ++i) {
    if (e1 <= e2) {
      high = c2;
      c2 = c1;
      e2 = e1;
      c1 = high - golden * (high - low);
      e1 = with_offset(u, y, c1).error;
    } else {
      low = c1;
      c1 = c2;
      e1 = e2;
      c2 = low + golden * (high - low);
      e2 = with_offset(u, y, c2).error;
    }
  }
  return with_offset(u, y, (low + high) / 2);
}

void bootstrap_pairs(PowerLawFit& fit, const std::vector<double>& u, const PowerLawOptions& options) {
  const size_t n = u.size();
  std::vector<double> as, bs;
  std::vector<std::vector<double>> predictions(fit.predictions.size());
  for (int64_t k = 0; k < options.resamples; ++k) {
    Rng rng(options.seed, "bootstrap", static_cast<uint64_t>(k));
    std::vector<double> ru(n), ry(n);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t j = rng.below(static_cast<uint32_t>(n));
      ru[i] = u[j];
      ry[i] = fit.y[j];
    }
    if (std::set<double>(ru.begin(), ru.end()).size() < 3) { continue; }
    const OffsetFit f = best_offset(ru, ry);
    as.push_back(f.a);
    bs.push_back(f.b);
    for (size_t p = 0; p < predictions.size(); ++p) {
      predictions[p].push_back(f.a * std::pow(fit.predictions[p].x, -f.b) + f.c);
    }
  }
  fit.interval_method = "percentile pairs (too narrow for few points)";
  if (as.empty()) { return; }
  const auto interval = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return Interval{quantile(v, 0.025), quantile(v, 0.975)};
  };
  fit.a_interval = interval(as);
  fit.b_interval = interval(bs);
  for (size_t p = 0; p < predictions.size(); ++p) { fit.predictions[p].interval = interval(predictions[p]); }
}

void require_points(const std::vector<double>& x, const std::vector<double>& y, bool offset) {
  const size_t distinct = std::set<double>(x.begin(), x.end()).size(), needed = offset ? 3 : 2;
  if (distinct < needed) {
    throw ConfigError("fit", fmt::format("{:d} distinct x", distinct), fmt::format("at least {:d}", needed));
  }
  const auto is_positive = [](double v) { return std::isfinite(v) && v > 0; };
  if (!std::all_of(x.begin(), x.end(), is_positive) || !std::all_of(y.begin(), y.end(), is_positive)) {
    throw ConfigError("fit", "a point that is not positive", "positive x and y");
  }
}

Json interval_json(const std::optional<Interval>& i) { return i ? Json::array({Json(i->low), Json(i->high)}) : Json(); }

}  // namespace

double PowerLawFit::at(double x_value) const { return a * std::pow(x_value, -b) + c; }

PowerLawFit fit_power_law(const std::vector<double>& x, const std::vector<double>& y,
                          const std::vector<double>& predict_x, const PowerLawOptions& options) {
  HEBB_ASSERT(x.size() == y.size());
  require_points(x, y, options.offset);
  PowerLawFit fit;
  fit.x = x;
  fit.y = y;
  const size_t coefficients = options.offset ? 3 : 2;
  const bool is_free = x.size() > coefficients;
  fit.interval_method = is_free ? "none" : "none: no degree of freedom is left";
  const std::vector<double> u = logs(x), v = logs(y), u0 = logs(predict_x);
  const Line line = fit_line(u, v);
  double error = line.sum_squares, spread = 0, mean = 0;
  if (options.offset) {
    const OffsetFit best = best_offset(u, y);
    fit.a = best.a;
    fit.b = best.b;
    fit.c = best.c;
    error = best.error;
  } else {
    fit.a = std::exp(line.intercept);
    fit.b = -line.slope;
  }
  for (const double value : v) { mean += value / static_cast<double>(v.size()); }
  for (const double value : v) { spread += (value - mean) * (value - mean); }
  if (is_free) { fit.r2 = spread > 0 ? 1 - error / spread : 1; }
  for (const double px : predict_x) { fit.predictions.push_back({px, fit.at(px), std::nullopt}); }
  if (!is_free) { return fit; }
  if (options.offset) {
    bootstrap_pairs(fit, u, options);
  } else if (x.size() >= 5) {
    bootstrap_residuals(fit, line, u, v, u0, options);
  } else {
    student_intervals(fit, line, x.size(), u0);
  }
  return fit;
}

Json PowerLawFit::json() const {
  Json points = Json::array(), list = Json::array();
  for (size_t i = 0; i < x.size(); ++i) { points.push(Json::array({Json(x[i]), Json(y[i])})); }
  for (const Prediction& p : predictions) {
    list.push(Json::object({{"x", p.x}, {"y", p.y}, {"interval", interval_json(p.interval)}}));
  }
  return Json::object({{"a", a},
                       {"b", b},
                       {"c", c},
                       {"r2", r2 ? Json(*r2) : Json()},
                       {"interval_method", interval_method},
                       {"a_interval", interval_json(a_interval)},
                       {"b_interval", interval_json(b_interval)},
                       {"points", points},
                       {"predictions", list}});
}

}  // namespace hebb
