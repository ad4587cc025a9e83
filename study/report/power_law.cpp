#include "study/report/power_law.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/error.h"

namespace hebb {
namespace {

/// Least squares v = intercept + slope u.
struct Line {
  double intercept = 0, slope = 0, sum_squares = 0;  // of residuals
};

Line fit_line(const std::vector<double>& u, const std::vector<double>& v) {
  const auto n = static_cast<double>(u.size());
  double mean_u = 0, mean_v = 0, spread = 0, product = 0;
  for (size_t i = 0; i < u.size(); ++i) {
    mean_u += u[i] / n;
    mean_v += v[i] / n;
  }
  for (size_t i = 0; i < u.size(); ++i) {
    spread += (u[i] - mean_u) * (u[i] - mean_u);
    product += (u[i] - mean_u) * (v[i] - mean_v);
  }
  Line line;
  line.slope = product / spread;
  line.intercept = mean_v - line.slope * mean_u;
  for (size_t i = 0; i < u.size(); ++i) {
    const double e = v[i] - line.intercept - line.slope * u[i];
    line.sum_squares += e * e;
  }
  return line;
}

std::vector<double> logs(const std::vector<double>& values, double offset = 0) {
  std::vector<double> result;
  for (const double v : values) { result.push_back(std::log(v - offset)); }
  return result;
}

struct OffsetFit {
  double a, b, c, error;
};

OffsetFit with_offset(const std::vector<double>& u, const std::vector<double>& y, double c) {
  const Line line = fit_line(u, logs(y, c));
  OffsetFit fit{std::exp(line.intercept), -line.slope, c, 0};
  for (size_t i = 0; i < u.size(); ++i) {
    const double e = std::log(y[i]) - std::log(std::exp(line.intercept + line.slope * u[i]) + c);
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

/// d ln y / d (ln a, b, c) at x; without c where `count` is 2.
std::vector<double> slopes_at(const PowerLawFit& fit, double x, size_t count) {
  const double power = fit.a * std::pow(x, -fit.b), y = power + fit.c;
  std::vector<double> slopes{power / y, -power / y * std::log(x), 1 / y};
  slopes.resize(count);
  return slopes;
}

/// z with M z = r, by Gauss-Jordan steps; M is symmetric and positive definite.
std::vector<double> solved(std::vector<std::vector<double>> m, std::vector<double> r) {
  for (size_t p = 0; p < r.size(); ++p) {
    for (size_t i = 0; i < r.size(); ++i) {
      const double factor = i == p ? 0 : m[i][p] / m[p][p];
      for (size_t j = p; j < r.size(); ++j) { m[i][j] -= factor * m[p][j]; }
      r[i] -= factor * r[p];
    }
  }
  for (size_t p = 0; p < r.size(); ++p) { r[p] /= m[p][p]; }
  return r;
}

/// Student's t around the law, which is taken as linear in its coefficients near the best ones.
void set_intervals(PowerLawFit& fit, double sum_squares, size_t count) {
  const double freedom = static_cast<double>(fit.x.size() - count);
  const double width = student_quantile(freedom) * std::sqrt(sum_squares / freedom);
  std::vector<std::vector<double>> normal(count, std::vector<double>(count));
  for (const double x : fit.x) {
    const std::vector<double> g = slopes_at(fit, x, count);
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) { normal[i][j] += g[i] * g[j]; }
    }
  }
  const auto around = [&](double value, const std::vector<double>& g, double own) -> std::optional<Interval> {
    const std::vector<double> z = solved(normal, g);
    const double half = width * std::sqrt(own + std::inner_product(g.begin(), g.end(), z.begin(), 0.0));
    return std::isfinite(half) ? std::optional(Interval{value - half, value + half}) : std::nullopt;
  };
  const auto exponentiated = [](std::optional<Interval> i) {
    return i ? std::optional(Interval{std::exp(i->low), std::exp(i->high)}) : i;
  };
  const auto unit = [&](size_t i) {
    std::vector<double> g(count);
    g[i] = 1;
    return g;
  };
  fit.interval_method = "student t";
  fit.a_interval = exponentiated(around(std::log(fit.a), unit(0), 0));
  fit.b_interval = around(fit.b, unit(1), 0);
  for (PowerLawFit::Prediction& p : fit.predictions) {
    p.interval = exponentiated(around(std::log(p.y), slopes_at(fit, p.x, count), 1));
  }
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
                          const std::vector<double>& predict_x, bool has_offset) {
  HEBB_ASSERT(x.size() == y.size());
  require_points(x, y, has_offset);
  PowerLawFit fit;
  fit.x = x;
  fit.y = y;
  const size_t coefficients = has_offset ? 3 : 2;
  const bool is_free = x.size() > coefficients;
  fit.interval_method = is_free ? "none" : "none: no degree of freedom is left";
  const std::vector<double> u = logs(x), v = logs(y);
  const Line line = fit_line(u, v);
  double error = line.sum_squares, spread = 0, mean = 0;
  if (has_offset) {
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
  if (is_free) { set_intervals(fit, error, coefficients); }
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
