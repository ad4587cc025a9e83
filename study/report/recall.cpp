// Recall on generated rows against bytes of state (docs/verbs/report.md, Recall and state).
#include <cmath>

#include "core/statistics.h"
#include "study/report/chart_blocks.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

/// One setting of an evaluation: right answers and bytes of a decoder's state by run.
struct Asked {
  std::string label, setting;
  int64_t length = 0;
  std::map<std::string, std::pair<double, double>> of_run{};  // share, bytes
};

std::vector<Asked> asked_settings(const Results& all) {
  std::vector<Asked> found;
  for (const Evaluated& e : of_kind(all, {"icr", "icl", "mqar"})) {
    for (const Json& point : e.series("by_setting")) {
      const std::string setting = member_text(point, "setting");
      const double share = result_number(point, "accuracy"), bytes = result_number(point, "state_bytes");
      if (!std::isfinite(share) || !(bytes > 0)) { continue; }
      auto at = std::find_if(found.begin(), found.end(),
                             [&](const Asked& a) { return a.label == e.label && a.setting == setting; });
      if (at == found.end()) { at = found.insert(at, {e.label, setting, integer_of(point, "length")}); }
      at->of_run[e.run] = {share, bytes};
    }
  }
  return found;
}

}  // namespace

std::vector<ReportPart> report_recall(const Results& all, const std::vector<Json>& results) {
  const std::vector<Asked> settings = asked_settings(all);
  if (settings.empty()) { return {}; }
  const std::vector<SeedGroup> groups = seed_groups(results);
  Table shown{{"row", "evaluation", "setting"}, {}}, numbers = shown;
  add_number_columns(shown, {"seeds", "accuracy", "state [bytes]"});
  add_number_columns(numbers, {"seeds", "accuracy", "low", "high", "state_bytes"});
  ReportPart part{"Recall and state",
                  "Share of right answers, mean ± half of its 95 % interval over seeds, and bytes of a decoder's state "
                  "after the tokens of such a row, for one row.",
                  {},
                  "recall.csv"};
  for (const Asked& asked : settings) {
    ByteChart chart{"Recall, " + (asked.setting.empty() ? asked.label : asked.setting + " (" + asked.label + ")"),
                    "state of a decoder",
                    "share of right answers",
                    {}};
    for (const SeedGroup& group : groups) {
      std::vector<double> shares, bytes;
      for (const Json& run : group.runs) {
        const auto found = asked.of_run.find(run.text_at("id"));
        if (found == asked.of_run.end()) { continue; }
        shares.push_back(found->second.first);
        bytes.push_back(found->second.second);
      }
      if (shares.empty() || shares.size() < group.runs.size()) { continue; }
      const SampleMean share = sample_mean(shares);
      const double size = sample_mean(bytes).mean;
      shown.rows.push_back({group.id, asked.label, asked.setting, share.n,
                            share.half ? Json(mean_text(share.mean, *share.half)) : Json(share.mean), size});
      numbers.rows.push_back({group.id, asked.label, asked.setting, share.n, share.mean,
                              share.half ? Json(share.mean - *share.half) : Json(),
                              share.half ? Json(share.mean + *share.half) : Json(), size});
      chart.points.push_back({group.id, size, share.mean, share.half});
    }
    if (chart.points.size() > 1) {
      part.charts.emplace_back(
          "recall_" + file_name(asked.label + (asked.setting.empty() ? "" : "_" + asked.setting)) + ".svg",
          svg_bytes(chart));
    }
  }
  part.table = std::move(shown);
  part.numbers = std::move(numbers);
  return {part};
}

}  // namespace hebb
