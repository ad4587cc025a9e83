#include "study/report/fit.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "study/report/name_pattern.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

constexpr int kBandPoints = 40;
constexpr size_t kBandFrom = 5;  // points of a fit: with fewer the band covers the whole chart

std::string group_name(const Json& result, const std::string& by) {
  const Json* v = by.empty() ? nullptr : result.find(by);
  return v == nullptr ? "all" : v->text();
}

std::string interval_text(const std::optional<Interval>& i) {
  return i ? fmt::format("{:.5g} – {:.5g}", i->low, i->high) : std::string("–");
}

std::string axis_label(const std::string& key) {
  if (key == "flops.total") { return "training FLOPs"; }
  if (key == "loss.final") { return "training loss, last 5 % of steps [nats/token]"; }
  if (key == "params.non_embedding") { return "non-embedding parameters"; }
  if (key == "tokens") { return "training tokens"; }
  if (key.starts_with("ppl.")) { return "validation perplexity on " + key.substr(4); }
  return key.rfind("val.", 0) == 0 ? "validation loss on " + key.substr(4) + " [nats/token]" : key;
}

/// x where a fit reaches y; NaN where it never does.
double inverse(const PowerLawFit& fit, double y) {
  return y > fit.c && fit.b != 0 ? std::pow((y - fit.c) / fit.a, -1 / fit.b) : NAN;
}

/// A share far outside of what any run covers says no more than its direction.
std::string share_text(double share) {
  constexpr double kFar = 100;
  return !std::isfinite(share) ? "–"
         : share > kFar        ? "> 100"
         : share < 1 / kFar    ? "< 0.01"
                               : fmt::format("{:.3f}", share);
}

void add_fit(FitGroup& group, const Curve& points, const std::vector<Json>& held_out, const FitConfig& config,
             double low, double high) {
  std::vector<double> at;
  for (const Json& result : held_out) { at.push_back(result_number(result, config.x)); }
  for (int i = 0; i < kBandPoints; ++i) {
    at.push_back(std::exp(std::log(low) + (std::log(high) - std::log(low)) * i / (kBandPoints - 1)));
  }
  try {
    group.fit = fit_power_law(points.x, points.y, at, config.offset);
  } catch (const ConfigError& error) {
    group.problem = error.what();
    return;
  }
  const auto& predictions = group.fit->predictions;
  group.band.assign(predictions.begin() + static_cast<std::ptrdiff_t>(held_out.size()), predictions.end());
  for (size_t i = 0; i < held_out.size(); ++i) {
    group.held_out.push_back(
        {held_out[i].at("id").as_string(), at[i], result_number(held_out[i], config.y), predictions[i]});
  }
  group.fit->predictions.resize(held_out.size());
}

Table coefficients_table(const std::vector<FitGroup>& groups, bool has_offset) {
  Table table{{"group"}, {}};
  add_number_columns(table, {"points", "a", "b"});
  table.columns.emplace_back("95 % of b");
  if (has_offset) { add_number_columns(table, {"c"}); }
  add_number_columns(table, {"R²"});
  table.columns.emplace_back("interval");
  for (const FitGroup& g : groups) {
    std::vector<Json>& row = table.rows.emplace_back(std::vector<Json>{g.name});
    if (!g.fit) {
      row.resize(table.columns.size() - 1);
      row.emplace_back(g.problem);
      continue;
    }
    const PowerLawFit& f = *g.fit;
    for (const std::string& cell : {fmt::format("{}", f.x.size()), fmt::format("{:.5g}", f.a),
                                    fmt::format("{:.5f}", f.b), interval_text(f.b_interval)}) {
      row.emplace_back(cell);
    }
    if (has_offset) { row.emplace_back(fmt::format("{:.4f}", f.c)); }
    row.push_back(f.r2 ? Json(fmt::format("{:.5f}", *f.r2)) : Json());
    row.emplace_back(f.interval_method);
  }
  return table;
}

Table held_out_table(const std::vector<FitGroup>& groups, const std::string& x) {
  Table table{{"run"}, {}};
  add_number_columns(table, {x, "predicted"});
  table.columns.emplace_back("95 %");
  add_number_columns(table, {"measured", "difference"});
  for (const FitGroup& g : groups) {
    for (const FitGroup::HeldOut& h : g.held_out) {
      const bool is_measured = std::isfinite(h.measured);
      table.rows.push_back({h.id, fmt::format("{:.4e}", h.x), fmt::format("{:.5f}", h.predicted.y),
                            interval_text(h.predicted.interval),
                            is_measured ? Json(fmt::format("{:.5f}", h.measured)) : Json(),
                            is_measured ? Json(fmt::format("{:+.5f}", h.measured - h.predicted.y)) : Json()});
    }
  }
  return table;
}

Json finite_or_null(double v) { return std::isfinite(v) ? Json(v) : Json(); }
Json low_of(const std::optional<Interval>& i) { return i ? Json(i->low) : Json(); }
Json high_of(const std::optional<Interval>& i) { return i ? Json(i->high) : Json(); }

/// Coefficients in full, for programs.
Table all_coefficients(const std::vector<FitGroup>& groups) {
  Table table{{"group", "points", "a", "a_low", "a_high", "b", "b_low", "b_high", "c", "r2", "interval"}, {}};
  for (const FitGroup& g : groups) {
    if (!g.fit) { continue; }
    const PowerLawFit& f = *g.fit;
    table.rows.push_back({g.name, static_cast<int64_t>(f.x.size()), f.a, low_of(f.a_interval), high_of(f.a_interval),
                          f.b, low_of(f.b_interval), high_of(f.b_interval), f.c, f.r2 ? Json(*f.r2) : Json(),
                          f.interval_method});
  }
  return table;
}

/// Every point of the fits, and what they predict, in full.
Table all_points(const std::vector<FitGroup>& groups, const FitConfig& config) {
  Table table{{"group", "run", config.x, config.y, "fitted", "low", "high"}, {}};
  for (const FitGroup& g : groups) {
    if (!g.fit) { continue; }
    for (size_t i = 0; i < g.fit->x.size(); ++i) {
      table.rows.push_back({g.name, g.runs[i], g.fit->x[i], g.fit->y[i], g.fit->at(g.fit->x[i]), Json(), Json()});
    }
    for (const FitGroup::HeldOut& h : g.held_out) {
      table.rows.push_back({g.name, h.id, h.x, finite_or_null(h.measured), h.predicted.y, low_of(h.predicted.interval),
                            high_of(h.predicted.interval)});
    }
  }
  return table;
}

/// Where groups are compared: the largest point of the first one that has a fit.
std::optional<std::pair<double, double>> compared_at(const std::vector<FitGroup>& groups) {
  const auto first = std::find_if(groups.begin(), groups.end(), [](const FitGroup& g) { return g.fit.has_value(); });
  if (first == groups.end() || groups.size() < 2) { return std::nullopt; }
  const double x = *std::max_element(first->fit->x.begin(), first->fit->x.end());
  return std::pair{x, first->fit->at(x)};
}

/// share_table() in full.
Table all_shares(const std::vector<FitGroup>& groups, const FitConfig& config, double x, double wanted) {
  Table table{{"group", config.x, config.y, "difference", "share"}, {}};
  for (const FitGroup& g : groups) {
    if (!g.fit) { continue; }
    const double share = inverse(*g.fit, wanted) / x;
    table.rows.push_back({g.name, x, g.fit->at(x), g.fit->at(x) - wanted, finite_or_null(share)});
  }
  return table;
}

/// The fits at x, where the first group's is `wanted`.
Table share_table(const std::vector<FitGroup>& groups, const FitConfig& config, double x, double wanted) {
  Table table{{"group"}, {}};
  add_number_columns(table, {config.y, "difference", "share of " + config.x});
  for (const FitGroup& g : groups) {
    if (!g.fit) { continue; }
    table.rows.push_back({g.name, fmt::format("{:.5f}", g.fit->at(x)), fmt::format("{:+.5f}", g.fit->at(x) - wanted),
                          share_text(inverse(*g.fit, wanted) / x)});
  }
  return table;
}

}  // namespace

void fields(Fields& f, FitConfig& c) {
  f.field("x", c.x).help("Key of the results.");
  f.field("y", c.y).help("Key of the results.");
  f.field("by", c.by).help("Tag; one fit for each of its values.");
  f.field("level", c.level).help("Tag; the report's table by `by` has a row for each of its values.");
  f.field("fit_ids", c.fit_ids).not_empty().help("Runs that are fitted (patterns).");
  f.field("predict_ids", c.predict_ids).help("Runs that are predicted and compared (patterns).");
  f.field("offset", c.offset).help("Fit a x^-b + c.");
}

std::vector<FitGroup> fit_groups(const std::vector<Json>& results, const FitConfig& config) {
  struct Collected {
    Curve points;
    std::vector<Json> held_out;
  };
  std::vector<FitGroup> groups;
  std::vector<Collected> collected;
  double low = INFINITY, high = 0;
  for (const Json& result : results) {
    const std::string id = result.at("id").as_string(), name = group_name(result, config.by);
    const double x = result_number(result, config.x), y = result_number(result, config.y);
    const bool is_held_out = matches_any(config.predict_ids, id);
    // A run that was only planned has no y.
    if (!std::isfinite(x) || (!is_held_out && !std::isfinite(y)) || x <= 0 ||
        (!is_held_out && !matches_any(config.fit_ids, id))) {
      continue;
    }
    auto it = std::find_if(groups.begin(), groups.end(), [&](const FitGroup& g) { return g.name == name; });
    if (it == groups.end()) {
      it = groups.insert(groups.end(),
                         FitGroup{.name = name, .fit = {}, .problem = "", .runs = {}, .held_out = {}, .band = {}});
      collected.emplace_back();
    }
    Collected& c = collected[static_cast<size_t>(it - groups.begin())];
    if (is_held_out) {
      c.held_out.push_back(result);
    } else {
      it->runs.push_back(id);
      c.points.add(x, y);
    }
    low = std::min(low, x);
    high = std::max(high, x);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    add_fit(groups[i], collected[i].points, collected[i].held_out, config, low, high);
  }
  return groups;
}

std::string fit_chart(const std::vector<FitGroup>& groups, const FitConfig& config) {
  std::vector<Curve> curves;
  std::vector<Band> bands;
  for (size_t g = 0; g < groups.size(); ++g) {
    const int colour = static_cast<int>(g);
    if (!groups[g].fit) { continue; }
    const PowerLawFit& fit = *groups[g].fit;
    curves.push_back({groups[g].name, fit.x, fit.y, Mark::points, colour});
    Curve line{groups[g].name + (fit.r2 ? fmt::format(": fit, R² {:.4f}", *fit.r2)
                                        : fmt::format(": curve through {} points", fit.x.size())),
               {},
               {},
               Mark::line,
               colour},
        held_out{"", {}, {}, Mark::points, colour};
    Band band{{}, {}, {}, colour};
    for (const PowerLawFit::Prediction& p : groups[g].band) {
      line.add(p.x, p.y);
      if (p.interval && fit.x.size() >= kBandFrom) {
        band.x.push_back(p.x);
        band.low.push_back(p.interval->low);
        band.high.push_back(p.interval->high);
      }
    }
    for (const FitGroup::HeldOut& h : groups[g].held_out) {
      if (std::isfinite(h.measured)) { held_out.add(h.x, h.measured); }
    }
    curves.push_back(line);
    curves.push_back(held_out);
    bands.push_back(band);
  }
  const std::string x = axis_label(config.x), y = axis_label(config.y);
  const bool has_bands = std::any_of(bands.begin(), bands.end(), [](const Band& b) { return !b.x.empty(); });
  return svg_chart(curves, {has_bands ? "Scaling, with 95 % bands of a new run" : "Scaling", x, y, true, true}, bands);
}

void write_fits(Page& page, const std::vector<FitGroup>& groups, const FitConfig& config) {
  page.paragraph(config.y + " = a · " + config.x + "^−b" + (config.offset ? " + c" : ""));
  page.table(coefficients_table(groups, config.offset));
  if (std::any_of(groups.begin(), groups.end(), [](const FitGroup& g) { return g.fit && !g.fit->r2; })) {
    page.paragraph(fmt::format(
        "A curve with {0} coefficients goes through {0} points exactly: such a row says nothing about how well the law "
        "holds, nor how far off its predictions are.",
        config.offset ? 3 : 2));
  }
  if (const Table held_out = held_out_table(groups, config.x); !held_out.rows.empty()) {
    page.paragraph("Held-out runs: predicted from the fit, and measured where they were trained.");
    page.table(held_out);
  }
  if (const auto at = compared_at(groups)) {
    const auto [x, wanted] = *at;
    page.paragraph(fmt::format(
        "The fits at {} {:.4e}, the largest point of the first group, and the share of it that each needs to reach the "
        "first group's value.",
        config.x, x));
    page.table(share_table(groups, config, x, wanted));
  }
}

Json fit_json(const std::vector<FitGroup>& groups, const FitConfig& config) {
  Json list = Json::array();
  for (const FitGroup& g : groups) {
    Json item = g.fit ? g.fit->json() : Json::object();
    item.set("group", g.name);
    if (!g.fit) { item.set("problem", g.problem); }
    Json held_out = Json::array();
    for (const FitGroup::HeldOut& h : g.held_out) {
      held_out.push(Json::object(
          {{"id", h.id}, {"x", h.x}, {"predicted", h.predicted.y}, {"measured", finite_or_null(h.measured)}}));
    }
    item.set("held_out", held_out);
    list.push(item);
  }
  return Json::object({{"fit", Fields::write(config)}, {"groups", list}});
}

std::vector<std::pair<std::string, Table>> fit_tables(const std::vector<FitGroup>& groups, const FitConfig& config) {
  std::vector<std::pair<std::string, Table>> tables{{"fit.csv", all_coefficients(groups)},
                                                    {"fit_points.csv", all_points(groups, config)}};
  if (const auto at = compared_at(groups)) {
    tables.emplace_back("fit_shares.csv", all_shares(groups, config, at->first, at->second));
  }
  return tables;
}

}  // namespace hebb
