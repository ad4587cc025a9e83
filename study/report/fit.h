#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fields.h"
#include "study/report/chart.h"
#include "study/report/page.h"
#include "study/report/power_law.h"

namespace hebb {

/// `fit` of a sweep (docs/verbs/ladder.md).
struct FitConfig {
  std::string x = "flops.total", y = "loss.final", by;  // keys of results; by: "" = one fit for all
  std::string level = "level";  // tag: rows of the report's table of y with a column for each value of `by`
  std::vector<std::string> fit_ids{"*"}, predict_ids;  // patterns with * and ?
  bool offset = false;
};

void fields(Fields& f, FitConfig& config);

/// The runs of one value of the tag `by`, with their fit.
struct FitGroup {
  std::string name;
  std::optional<PowerLawFit> fit;
  std::string problem;            // why there is no fit
  std::vector<std::string> runs;  // of its points
  struct HeldOut {
    std::string id;
    double x, measured;
    PowerLawFit::Prediction predicted;
  };
  std::vector<HeldOut> held_out;
  std::vector<PowerLawFit::Prediction> band;  // over the range of the chart
};

/// Groups in order of first appearance. Runs without x or y do not take part.
std::vector<FitGroup> fit_groups(const std::vector<Json>& results, const FitConfig& config);

/// Points, fitted lines and 95 % bands on logarithmic axes.
std::string fit_chart(const std::vector<FitGroup>& groups, const FitConfig& config);

/// Tables of coefficients, of predicted against measured, and of groups against the first one.
void write_fits(Page& page, const std::vector<FitGroup>& groups, const FitConfig& config);
/// CSV files of the fits: coefficients and their intervals; points, and runs that are predicted.
std::vector<std::pair<std::string, Table>> fit_tables(const std::vector<FitGroup>& groups, const FitConfig& config);
Json fit_json(const std::vector<FitGroup>& groups, const FitConfig& config);

}  // namespace hebb
