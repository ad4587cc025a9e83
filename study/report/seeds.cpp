// Means over seeds with intervals, and paired tests between rows (docs/verbs/report.md, Seeds).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/statistics.h"
#include "eval/comparison.h"
#include "study/report/chart_blocks.h"
#include "study/report/meanings.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

constexpr size_t kMostCharts = 24;

/// Losses and evaluations that people compare: of a loss and its perplexity the loss.
bool is_result(const std::string& key) {
  const bool is_speed = key == "tokens_per_s" || key == "seconds";
  return is_measured(key) && !is_speed && !key.starts_with("ppl.") && !is_detail(key);
}

std::vector<std::string> keys_where(const std::vector<SeedGroup>& groups, bool (*is_wanted)(const std::string&)) {
  std::vector<std::string> keys;
  for (const SeedGroup& group : groups) {
    for (const std::string& key : result_keys(group.runs)) {
      if (is_wanted(key)) { add_once(keys, key); }
    }
  }
  return keys;
}

/// One value for each run, all finite; empty where some has none.
std::vector<double> values_of(const SeedGroup& group, const std::string& key) {
  std::vector<double> values;
  for (const Json& run : group.runs) {
    if (const double v = result_number(run, key); std::isfinite(v)) { values.push_back(v); }
  }
  return values.size() == group.runs.size() ? values : std::vector<double>{};
}

Table numbers_of(const std::vector<SeedGroup>& groups) {
  Table table{{"row", "statistic", "unit"}, {}};
  add_number_columns(table, {"seeds", "mean", "low", "high", "std"});
  for (const std::string& key : keys_where(groups, is_measured)) {
    for (const SeedGroup& group : groups) {
      const std::vector<double> values = values_of(group, key);
      if (values.empty()) { continue; }
      const SampleMean m = sample_mean(values);
      table.rows.push_back({group.id, key, unit_of(key), m.n, m.mean, m.half ? Json(m.mean - *m.half) : Json(),
                            m.half ? Json(m.mean + *m.half) : Json(), m.deviation ? Json(*m.deviation) : Json()});
    }
  }
  return table;
}

/// Values of two rows from runs of the same seeds.
std::pair<std::vector<double>, std::vector<double>> pairs_of(const SeedGroup& a, const SeedGroup& b,
                                                             const std::string& key) {
  std::pair<std::vector<double>, std::vector<double>> pairs;
  for (const Json& one : a.runs) {
    for (const Json& other : b.runs) {
      const double x = result_number(one, key), y = result_number(other, key);
      const std::string seeds = one.text_at("seeds");
      if (!seeds.empty() && seeds == other.text_at("seeds") && std::isfinite(x) && std::isfinite(y)) {
        pairs.first.push_back(x);
        pairs.second.push_back(y);
      }
    }
  }
  return pairs;
}

}  // namespace

ReportPart report_seeds(const std::vector<Json>& results) {
  const std::vector<SeedGroup> groups = seed_groups(with_sources_apart(results));
  ReportPart part{"Results over seeds",
                  "A row: runs whose configurations differ in seeds alone. Mean ± half of its 95 % interval over seeds "
                  "(Student's t, n - 1 degrees of freedom for n seeds). A row of one seed has no interval.",
                  comparison_table(over_seeds(results)), "seeds.csv"};
  part.numbers = numbers_of(groups);
  for (const std::string& key : keys_where(groups, is_result)) {
    double low = INFINITY, high = -INFINITY;
    IntervalChart chart{key, unit_of(key).empty() ? key : key + " [" + unit_of(key) + "]", {}};
    for (const SeedGroup& group : groups) {
      const std::vector<double> values = values_of(group, key);
      if (values.empty()) { continue; }
      const SampleMean m = sample_mean(values);
      chart.rows.push_back({group.id, m.mean, m.half, values});
      for (const double value : values) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
    if (low < high && part.charts.size() < kMostCharts) {
      part.charts.emplace_back("seeds_" + file_name(key) + ".svg", svg_intervals(chart));
    }
  }
  return part;
}

std::vector<ReportPart> report_seed_tests(const std::vector<Json>& results, const std::string& level) {
  const std::vector<SeedGroup> groups = seed_groups(with_sources_apart(results));
  Table shown{{"statistic", "row", "minus"}, {}}, numbers = shown;
  add_number_columns(shown, {"seeds", "difference", "95 % interval", "p", "p, Holm"});
  add_number_columns(numbers, {"seeds", "difference", "low", "high", "p", "p_holm"});
  std::vector<double> ps;
  for (const std::string& key : keys_where(groups, is_result)) {
    for (size_t i = 1; i < groups.size(); ++i) {
      const std::string own = level.empty() ? "" : member_text(groups[i].runs[0], level);
      const auto base = std::find_if(groups.begin(), groups.end(), [&](const SeedGroup& g) {
        return level.empty() || member_text(g.runs[0], level) == own;
      });
      if (base - groups.begin() >= static_cast<std::ptrdiff_t>(i)) { continue; }
      const auto [a, b] = pairs_of(groups[i], *base, key);
      if (a.size() < 2) { continue; }
      const PairedTest test = paired_test(a, b);
      const SampleMean& d = test.difference;
      const double low = d.mean - *d.half, high = d.mean + *d.half;
      ps.push_back(*test.p);
      shown.rows.push_back({key, groups[i].id, base->id, d.n, fmt::format("{:+.4g}", d.mean),
                            fmt::format("{:+.4g} to {:+.4g}", low, high), p_text(*test.p), Json()});
      numbers.rows.push_back({key, groups[i].id, base->id, d.n, d.mean, low, high, *test.p, Json()});
    }
  }
  if (ps.empty()) { return {}; }
  const std::vector<double> corrected = holm(ps);
  for (size_t k = 0; k < ps.size(); ++k) {
    shown.rows[k].back() = p_text(corrected[k]);
    numbers.rows[k].back() = corrected[k];
  }
  constexpr size_t kMost = 60;
  ReportPart part{"Tests over seeds",
                  std::string("Differences of each row to the first one") +
                      (level.empty() ? "" : " of the same " + level) +
                      ", paired by seed, with 95 % intervals. p: two-sided, Student's paired t test with one degree of "
                      "freedom less than seeds. \"p, Holm\": corrected by Holm's method for all tests of this table.",
                  std::move(shown), "tests.csv", numbers.rows.size() > kMost};
  part.numbers = std::move(numbers);
  return {part};
}

}  // namespace hebb
