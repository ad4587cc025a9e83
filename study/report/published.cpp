#include "study/report/published.h"

#include <fmt/core.h>

#include <cmath>

#include "core/error.h"
#include "core/statistics.h"
#include "study/report/group_by_seed.h"
#include "study/report/parts.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

[[noreturn]] void fail_at(const Origin& at, const std::string& path, const std::string& found,
                          const std::string& expected) {
  throw ConfigError(located(at.str(), path), found, expected);
}

void check_row(const std::string& path, const Json& row, size_t columns) {
  const std::string expected = fmt::format("{} numbers or nulls, one for each column", columns);
  if (!row.is_array()) { fail_at(row.origin(), path, row.found(), expected); }
  if (row.items().size() != columns) {
    fail_at(row.origin(), path, fmt::format("{} values", row.items().size()), expected);
  }
  for (const Json& value : row.items()) {
    if (!value.is_number() && !value.is_null()) { fail_at(value.origin(), path, value.found(), "a number or null"); }
  }
}

/// Mean and 95 % interval over the runs that have the number; null where none has.
Json ours(const PublishedColumn& column, const std::vector<const Json*>& results) {
  std::vector<double> values;
  for (const Json* result : results) {
    if (const double x = result_number(*result, column.key); std::isfinite(x)) { values.push_back(column.scale * x); }
  }
  if (values.empty()) { return {}; }
  const SampleMean sample = sample_mean(values);
  return sample.half ? Json(mean_text(sample.mean, *sample.half)) : Json(sample.mean);
}

}  // namespace

void fields(Fields& f, PublishedColumn& c) {
  f.field("name", c.name).required().help("Title of the column.");
  f.field("key", c.key).help("Key of the results that is the same number. Default: none, the column has no other.");
  f.field("scale", c.scale).above(0).help("Results times this are in the unit of the column.");
}

void fields(Fields& f, PublishedTable& t) {
  f.field("source", t.source).required().help("The paper, and which of its tables.");
  f.list("columns", t.columns).help("The columns.");
  f.field("rows", t.rows).required().help("By run: a number or null for each column.");
  if (!f.reading()) { return; }
  if (!t.rows.is_object()) { fail_at(t.rows.origin(), f.path() + ".rows", t.rows.found(), "an object"); }
  for (const auto& [run, row] : t.rows.members()) { check_row(f.path() + ".rows." + run, row, t.columns.size()); }
}

std::vector<const Json*> results_of_row(const std::string& row, const std::vector<Json>& results) {
  std::vector<const Json*> exact, choices;
  for (const Json& result : results) {
    const std::string id = result.at("id").as_string();
    if (id == row) { exact.push_back(&result); }
    if (id.starts_with(row + "_")) { choices.push_back(&result); }
  }
  return exact.empty() ? choices : exact;
}

ReportPart beside_published(const PublishedTable& table, const std::vector<Json>& results,
                            const std::string& shrunk_to) {
  ReportPart part;
  part.title = "Beside the published numbers";
  part.text = "Published: " + table.source +
              ". Ours: the runs of this ladder, mean ± half the 95 % interval where a row has several." +
              (shrunk_to.empty() ? ""
                                 : " They were shrunk to " + shrunk_to +
                                       ": they are not the paper's models and saw neither its data nor as many "
                                       "tokens. A loss counts per token of its own tokenizer: published and our "
                                       "losses have different units.");
  part.csv_file = "published.csv";
  part.table.columns = {"run"};
  for (const PublishedColumn& column : table.columns) {
    add_number_columns(part.table, {column.name + ", published"});
    if (!column.key.empty()) { add_number_columns(part.table, {column.name + ", ours"}); }
  }
  for (const auto& [run, row] : table.rows.members()) {
    const std::vector<const Json*> beside = results_of_row(run, results);
    std::vector<Json> cells{run};
    for (size_t i = 0; i < table.columns.size(); ++i) {
      cells.push_back(row.items()[i]);
      if (!table.columns[i].key.empty()) { cells.push_back(ours(table.columns[i], beside)); }
    }
    part.table.rows.push_back(std::move(cells));
  }
  return part;
}

}  // namespace hebb
