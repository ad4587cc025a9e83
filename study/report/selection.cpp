// What a router selects, of evaluations of kind `selection` (docs/verbs/report.md, Evaluations).
#include "core/statistics.h"
#include "study/report/chart_blocks.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
std::vector<ReportPart> report_selection(const Results& all, const std::vector<Json>& results) {
  const std::vector<SeedGroup> groups = seed_groups(results);
  Table table{{"row", "evaluation", "statistic", "positions"}, {}};
  add_number_columns(table, {"seeds", "mean", "low", "high"});
  ReportPart part{"Selection",
                  "Mean score of a router and share that it keeps, by groups of positions, with 95 % intervals over "
                  "seeds.",
                  {},
                  "selection.csv",
                  true};
  for (const Results& one : by_label(of_kind(all, {"selection"}))) {
    for (const std::string statistic : {"score", "kept"}) {
      const std::string front = statistic + ".";
      IntervalChart chart{statistic + ": " + one[0].label, statistic == "kept" ? "share that is kept" : statistic, {}};
      for (const auto& [name, value] : one[0].object("metrics").members()) {
        if (!name.starts_with(front)) { continue; }
        for (const SeedGroup& group : groups) {
          std::vector<double> values;
          for (const Json& run : group.runs) {
            for (const Evaluated& e : one) {
              if (e.run == run.text_at("id")) { values.push_back(value_of(e.object("metrics"), name)); }
            }
          }
          if (values.empty() || values.size() != group.runs.size()) { continue; }
          const SampleMean m = sample_mean(values);
          const std::string positions = name.substr(front.size());
          table.rows.push_back({group.id, one[0].label, statistic, positions, m.n, m.mean,
                                m.half ? Json(m.mean - *m.half) : Json(), m.half ? Json(m.mean + *m.half) : Json()});
          chart.rows.push_back({group.id + ", " + positions, m.mean, m.half, values});
        }
      }
      if (chart.rows.empty()) { continue; }
      part.charts.emplace_back("selection_" + statistic + "_" + file_name(one[0].label) + ".svg", svg_intervals(chart));
    }
  }
  if (part.charts.empty()) { return {}; }
  part.table = std::move(table);
  return {part};
}

}  // namespace hebb
