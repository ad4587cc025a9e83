// Recall on generated rows against bytes of state (docs/verbs/report.md, Recall and state).
#include <charconv>
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
  int64_t size = 0;  // in `unit`; of icl "4 functions": 4
  const char* unit = "tokens of a row";
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
      if (at == found.end()) {
        at = found.insert(at, {e.label, setting, integer_of(point, "length")});
        if (e.kind == "icl") {
          std::from_chars(setting.data(), setting.data() + setting.size(), at->size);
          at->unit = "functions of a row";
        }
      }
      at->of_run[e.run] = {share, bytes};
    }
  }
  return found;
}

/// The name of an evaluation with N in place of its size, where the size stands in it as a whole number.
std::string family_of(std::string label, int64_t size) {
  const std::string digits = std::to_string(size);
  const auto is_digit = [&](size_t i) { return i < label.size() && label[i] >= '0' && label[i] <= '9'; };
  for (size_t at = label.find(digits); at != std::string::npos; at = label.find(digits, at + 1)) {
    if ((at == 0 || !is_digit(at - 1)) && !is_digit(at + digits.size())) {
      return label.replace(at, digits.size(), "N");
    }
  }
  return label;
}

/// Shares of rows over the size of what was asked, by evaluations that differ in it alone: recall-N has recall-64 and
/// recall-128, and an evaluation of several lengths is one by itself.
class SizeCharts {
 public:
  void add(const Asked& asked, const std::string& row, const SampleMean& share) {
    Family& f = families_[family_of(asked.label, asked.size)];
    f.unit = asked.unit;
    const size_t i = add_once(f.names, row);
    if (i == f.rows.size()) { f.rows.emplace_back(); }
    f.is_clear = f.rows[i].emplace(asked.size, share).second && f.is_clear;
  }

  void draw(ReportPart& part) const {
    for (const auto& [name, family] : families_) {
      std::vector<Curve> curves;
      std::vector<Band> bands;
      for (size_t i = 0; i < family.rows.size(); ++i) {
        const auto& points = family.rows[i];
        if (points.size() < 2) { continue; }
        const int colour = static_cast<int>(curves.size());
        Curve& curve = curves.emplace_back(Curve{family.names[i], {}, {}, Mark::line, colour});
        Band band{{}, {}, {}, colour};
        for (const auto& [size, share] : points) {
          curve.add(static_cast<double>(size), share.mean);
          band.x.push_back(static_cast<double>(size));
          band.low.push_back(std::max(0.0, share.mean - share.half.value_or(0)));
          band.high.push_back(std::min(1.0, share.mean + share.half.value_or(0)));
        }
        bands.push_back(std::move(band));
      }
      if (curves.empty() || !family.is_clear) { continue; }
      const ChartStyle style{.title = "Recall: " + name,
                             .x_label = family.unit,
                             .y_label = "share of right answers",
                             .log_x = true,
                             .low_y = 0,
                             .high_y = 1};
      part.charts.emplace_back("recall_over_" + file_name(name) + ".svg", svg_chart(curves, style, bands));
    }
  }

 private:
  struct Family {
    const char* unit = "";
    std::vector<std::string> names;
    std::vector<std::map<int64_t, SampleMean>> rows;  // by size
    bool is_clear = true;                             // no two settings of one row have the same size
  };
  std::map<std::string, Family> families_;
};

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
  SizeCharts over_sizes;
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
      over_sizes.add(asked, group.id, share);
    }
    if (chart.points.size() > 1) {
      part.charts.emplace_back(
          "recall_" + file_name(asked.label + (asked.setting.empty() ? "" : "_" + asked.setting)) + ".svg",
          svg_bytes(chart));
    }
  }
  over_sizes.draw(part);
  part.table = std::move(shown);
  part.numbers = std::move(numbers);
  return {part};
}

}  // namespace hebb
