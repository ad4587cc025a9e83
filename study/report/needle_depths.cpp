// Needles by the depth at which they stand and the length of the haystack.
#include <fmt/core.h>

#include <cmath>

#include "study/report/chart_blocks.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

/// Exact match of one result after so many readings: depths as rows, lengths as columns.
HeatMap needle_map(const std::string& title, const std::vector<Json>& points, int64_t passes) {
  std::set<double> depths;
  std::set<int64_t> lengths;
  std::map<std::pair<double, int64_t>, double> exact;
  for (const Json& p : points) {
    if (integer_of(p, "passes") != passes) { continue; }
    const double depth = result_number(p, "depth");
    const int64_t words = integer_of(p, "context_words");
    depths.insert(depth);
    lengths.insert(words);
    exact[{depth, words}] = result_number(p, "exact");
  }
  HeatMap map{title, "length of the haystack [words]", {}, {}, {}};
  map.y_label = "depth";
  map.top = 1;
  for (const int64_t words : lengths) { map.columns.push_back(std::to_string(words)); }
  for (const double depth : depths) {
    map.rows.push_back(fmt::format("{:.3g} %", 100 * depth));
    std::vector<double>& row = map.values.emplace_back();
    for (const int64_t words : lengths) {
      const auto found = exact.find({depth, words});
      row.push_back(found != exact.end() ? found->second : NAN);
    }
  }
  return map;
}

}  // namespace

std::vector<ReportPart> report_needle_depths(const Results& all) {
  Pivot pivot({"run",
               "evaluation",
               {"words", TableColumn::Kind::number},
               {"readings", TableColumn::Kind::number},
               {"depth", TableColumn::Kind::number}});
  ReportPart part{
      "Needles by depth and length",
      "Share of samples with an exact match. 0 % is the start of the haystack. Drawn depths are tenths, named by "
      "their middle. A drawing for each result, after its last number of readings.",
      {},
      "needle_depths.csv",
      true};
  for (const Evaluated& e : of_kind(all, {"niah"})) {
    const std::vector<Json>& points = e.series("by_depth");
    if (points.empty()) { continue; }
    for (const Json& p : points) {
      for (const char* name : {"exact", "digits", "candidate", "n"}) {
        pivot.set({e.run, e.label, member_text(p, "context_words"), member_text(p, "passes"), member_text(p, "depth")},
                  name, result_number(p, name), e, point_precision(p, name));
      }
    }
    const std::string title = e.run + " " + e.label;
    part.charts.emplace_back(
        "needle_depths_" + file_name(title) + ".svg",
        svg_heat_map(needle_map("Needles found: " + title, points, integer_of(points.back(), "passes"))));
  }
  if (part.charts.empty()) { return {}; }
  part.table = pivot.numbers();
  return {part};
}

}  // namespace hebb
