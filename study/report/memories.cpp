// Sections of a report: continual learning, and how memories are used.

#include "layers/statistics.h"
#include "study/report/chart_blocks.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

/// Quantiles and bins, which drawings show.
bool is_detail(const std::string& statistic) {
  const bool is_quantile = statistic.ends_with("_median") || statistic.ends_with("_q10") || statistic.ends_with("_q90");
  const size_t gate = statistic.find(".gate_");
  return is_quantile || (gate != std::string::npos && statistic.size() == gate + 7);
}

/// Lines of each domain over the stages, on the colour of the domain that was read between them.
std::vector<ReportPart> adaptation(const Results& all) {
  std::vector<ReportPart> parts;
  for (const Evaluated& e : of_kind(all, {"adapt"})) {
    Pivot pivot({"run", {"stage", TableColumn::Kind::number}, "adapted"});
    std::vector<Curve> curves;
    std::vector<std::string> domains;
    std::map<int64_t, std::string> adapted;
    for (const Json& p : e.series("adaptation")) {
      const std::string domain = member_text(p, "domain"), before = member_text(p, "adapted");
      for (const char* key : {"nll", "delta"}) {
        pivot.set({e.run, member_text(p, "stage"), before.empty() ? "–" : before}, domain + " " + key,
                  result_number(p, key), e);
      }
      const size_t i = add_once(domains, domain);
      if (i == curves.size()) { curves.push_back({domain, {}, {}, Mark::line, static_cast<int>(i)}); }
      curves[i].add(result_number(p, "stage"), result_number(p, "delta"));
      adapted[integer_of(p, "stage")] = before;
    }
    std::vector<Band> bands;
    for (const auto& [stage, domain] : adapted) {
      const auto at = std::find(domains.begin(), domains.end(), domain);
      if (at == domains.end()) { continue; }
      const double x = static_cast<double>(stage);
      bands.push_back({{x - 1, x}, {}, {}, static_cast<int>(at - domains.begin())});
    }
    ReportPart part{"Continual learning: " + e.run + ", " + e.label,
                    "Loss [nats] of each domain's held-out rows after each stage, and its difference to stage 0. The "
                    "shade between two stages is the domain that was read there.",
                    pivot.table(), "adapt_" + file_name(e.run + "_" + e.label) + ".csv"};
    part.charts.emplace_back(
        "adapt_" + file_name(e.run + "_" + e.label) + ".svg",
        svg_chart(curves, {"Continual learning: " + e.label, "stage", "loss - loss before [nats]"}, bands));
    parts.push_back(std::move(part));
  }
  return parts;
}

void add_gate_maps(ReportPart& part, const Results& results) {
  for (const Evaluated& e : results) {
    HeatMap map{"Gates: " + e.run + ", " + e.label, "gate, bins of a tenth (share of the tokens)", {}, {}, {}};
    for (const Json& p : e.series("gate_histogram")) {
      const std::string layer = member_text(p, "layer"), bin = member_text(p, "from");
      if (map.rows.empty() || map.rows.back() != layer) {
        map.rows.push_back(layer);
        map.values.emplace_back();
      }
      if (map.rows.size() == 1) { map.columns.push_back(bin); }
      map.values.back().push_back(result_number(p, "share"));
    }
    if (!map.rows.empty()) {
      part.charts.emplace_back("gates_" + file_name(e.run + "_" + e.label) + ".svg", svg_heat_map(map));
    }
  }
}

/// A drawing for each value of `by`: a curve for each evaluation, in a band.
void add_band_charts(ReportPart& part, const Results& results, const StatisticsChart& how) {
  std::vector<std::string> sides;
  for (const Evaluated& e : results) {
    for (const Json& p : e.series(how.series)) { add_once(sides, member_text(p, how.by)); }
  }
  for (const std::string& side : sides) {
    std::vector<Curve> curves;
    std::vector<Band> bands;
    for (const Evaluated& e : results) {
      const auto colour = static_cast<int>(bands.size());
      Curve c{e.run + " " + e.label, {}, {}, Mark::line, colour};
      Band band{{}, {}, {}, colour};
      for (const Json& p : e.series(how.series)) {
        if (member_text(p, how.by) != side) { continue; }
        c.add(result_number(p, how.x), result_number(p, how.y));
        band.x.push_back(c.x.back());
        band.low.push_back(result_number(p, how.low));
        band.high.push_back(result_number(p, how.high));
      }
      if (c.x.empty()) { continue; }
      curves.push_back(std::move(c));
      for (const auto* edge : {&band.low, &band.high}) { curves.push_back({"", band.x, *edge, Mark::dashed, colour}); }
      bands.push_back(std::move(band));
    }
    part.charts.emplace_back(how.series + "_" + file_name(side) + ".svg",
                             svg_chart(curves, {how.title + ", " + side + "s", how.x_title, how.y_title, true}, bands));
  }
}

std::vector<ReportPart> memories(const Results& all) {
  const Results results = of_kind(all, {"memory_stats"});
  if (results.empty()) { return {}; }
  Pivot pivot({"statistic"}), main({"statistic"}), layers({"run", "evaluation", "layer"});
  for (const Evaluated& e : results) {
    const Json& metrics = e.object("metrics");
    for (const auto& [name, metric] : metrics.members()) {
      pivot.set({name}, e.run + " " + e.label, value_of(metrics, name), e);
      if (!is_detail(name)) { main.set({name}, e.run + " " + e.label, value_of(metrics, name), e); }
    }
    for (const auto& [layer, numbers] : e.object("groups").members()) {
      for (const auto& [name, metric] : numbers.members()) {
        layers.set({e.run, e.label, layer}, name, value_of(numbers, name), e);
      }
    }
  }
  ReportPart part{"Use of memories",
                  "Means over layers. All of them with quantiles and bins: memory_stats.csv; those of each layer: "
                  "memory_layers.csv.",
                  main.table()};
  part.files.emplace_back("memory_stats.csv", pivot.numbers());
  part.files.emplace_back("memory_layers.csv", layers.numbers());
  add_gate_maps(part, results);
  for (const StatisticsChart& how : statistics_charts()) {
    if (!how.low.empty()) {
      add_band_charts(part, results, how);
      continue;
    }
    add_series_chart(part, results, {how.series, how.x, how.y, how.by, {how.title, how.x_title, how.y_title}},
                     "memory_" + how.series);
    Table points = points_table(results, how.series);
    if (!points.rows.empty()) { part.files.emplace_back("memory_" + how.series + ".csv", std::move(points)); }
  }
  return {part};
}

}  // namespace

std::vector<ReportPart> report_memories(const Results& all) {
  std::vector<ReportPart> parts = adaptation(all);
  for (ReportPart& part : memories(all)) { parts.push_back(std::move(part)); }
  return parts;
}

}  // namespace hebb
