#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/statistics.h"

namespace hebb {

/// y = a x^-b + c, fitted in logarithms (docs/verbs/report.md, The fit), with 95 % intervals.
struct PowerLawFit {
  double a = 0, b = 0, c = 0;
  std::optional<double> r2;     // none without degrees of freedom: the curve goes through its points, whatever they are
  std::vector<double> x, y;     // the points
  std::string interval_method;  // "student t", "none: ..."
  std::optional<Interval> a_interval, b_interval;
  struct Prediction {
    double x = 0, y = 0;
    std::optional<Interval> interval;
  };
  std::vector<Prediction> predictions;

  double at(double x_value) const;
  Json json() const;
};

/// Fits the points (positive, at least two distinct x; three with an offset c) and predicts at `predict_x`. Intervals
/// are Student's t; with an offset the law is taken as linear near the best coefficients. As many points as
/// coefficients leave no degree of freedom: no R^2 and no intervals. Errors: ConfigError for too few points or values
/// that are not positive.
PowerLawFit fit_power_law(const std::vector<double>& x, const std::vector<double>& y,
                          const std::vector<double>& predict_x, bool has_offset);

}  // namespace hebb
