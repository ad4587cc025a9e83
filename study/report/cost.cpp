// What evaluations of kind `efficiency` say about each length (docs/verbs/report.md, Evaluations).
#include <cmath>

#include "core/statistics.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

/// A quantity by run and length. Of several measurements the smallest counts: what disturbs a clock makes it longer.
struct Quantity {
  std::string column, chart_file;
  ChartStyle style;
  std::map<std::string, std::map<int64_t, double>> of_run{};

  void add(const std::string& run, int64_t length, double value) {
    if (!std::isfinite(value) || !(value > 0)) { return; }
    const auto [at, is_new] = of_run[run].emplace(length, value);
    if (!is_new) { at->second = std::min(at->second, value); }
  }

  /// The values of all runs of a group at one length; empty where one has none.
  std::vector<double> values(const SeedGroup& group, int64_t length) const {
    std::vector<double> found;
    for (const Json& run : group.runs) {
      const auto at = of_run.find(run.text_at("id"));
      if (at == of_run.end() || !at->second.contains(length)) { return {}; }
      found.push_back(at->second.at(length));
    }
    return found;
  }
};

ChartStyle over_length(const char* title, const char* y_label) {
  return {.title = title, .x_label = "tokens", .y_label = y_label, .log_x = true, .log_y = true};
}

std::string drawn(const Quantity& quantity, const std::vector<SeedGroup>& groups, const std::set<int64_t>& lengths) {
  std::vector<Curve> curves;
  std::vector<Band> bands;
  for (const SeedGroup& group : groups) {
    const int colour = static_cast<int>(curves.size());
    Curve curve{group.id, {}, {}, Mark::line, colour};
    Band band{{}, {}, {}, colour};
    for (const int64_t length : lengths) {
      const std::vector<double> values = quantity.values(group, length);
      if (values.empty()) { continue; }
      const SampleMean m = sample_mean(values);
      const auto at = static_cast<double>(length);
      curve.add(at, m.mean);
      band.x.push_back(at);
      // The axis is logarithmic: an interval that reaches zero ends at the smallest value.
      const double low = m.mean - m.half.value_or(0);
      band.low.push_back(low > 0 ? low : *std::min_element(values.begin(), values.end()));
      band.high.push_back(m.mean + m.half.value_or(0));
    }
    if (curve.x.size() < 2) { continue; }
    curves.push_back(std::move(curve));
    bands.push_back(std::move(band));
  }
  return curves.empty() ? "" : svg_chart(curves, quantity.style, bands);
}

}  // namespace

std::vector<ReportPart> report_cost(const Results& all, const std::vector<Json>& results) {
  Quantity state{"state [bytes]", "cost_state.svg", over_length("State of a decoder", "bytes")},
      prefill{"prefill [s]", "cost_prefill.svg", over_length("Prefill", "seconds")};
  std::set<int64_t> lengths;
  for (const Evaluated& e : of_kind(all, {"efficiency"})) {
    for (const Json& point : e.series("state_bytes")) {
      lengths.insert(integer_of(point, "tokens"));
      state.add(e.run, integer_of(point, "tokens"), result_number(point, "bytes"));
    }
    for (const Json& point : e.series("decoding")) {
      const int64_t rows_and_tokens = integer_of(point, "rows") * integer_of(point, "position");
      lengths.insert(integer_of(point, "position"));
      prefill.add(e.run, integer_of(point, "position"),
                  static_cast<double>(rows_and_tokens) / result_number(point, "prefill_tokens_per_s"));
    }
  }
  if (lengths.empty()) { return {}; }
  const std::vector<SeedGroup> groups = seed_groups(results);
  Table table{{"row", {"tokens", TableColumn::Kind::number}}, {}};
  add_number_columns(table, {"seeds", state.column, prefill.column});
  for (const SeedGroup& group : groups) {
    for (const int64_t length : lengths) {
      const std::vector<double> bytes = state.values(group, length), seconds = prefill.values(group, length);
      if (bytes.empty() && seconds.empty()) { continue; }
      const auto mean = [](const std::vector<double>& v) { return v.empty() ? Json() : Json(sample_mean(v).mean); };
      table.rows.push_back({group.id, length, static_cast<int64_t>(group.runs.size()), mean(bytes), mean(seconds)});
    }
  }
  ReportPart part{
      "Cost over length",
      "Bytes that a decoder keeps of one row, and seconds to read the smallest batch that was asked for: the "
      "best of a run, the mean over seeds. Shades: 95 % intervals.",
      std::move(table), "cost.csv"};
  for (const Quantity* quantity : {&state, &prefill}) {
    if (std::string svg = drawn(*quantity, groups, lengths); !svg.empty()) {
      part.charts.emplace_back(quantity->chart_file, std::move(svg));
    }
  }
  return {part};
}

}  // namespace hebb
