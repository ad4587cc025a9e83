#include "study/report/parts.h"

#include <cmath>

#include "core/join.h"
#include "core/json_line.h"
#include "core/names.h"
#include "eval/comparison.h"
#include "study/report/run_identity.h"
#include "study/report/run_results.h"

namespace hebb {
const Json& Evaluated::object(const std::string& key) const {
  static const Json none = Json::object();
  const Json* found = json.find(key);
  return found != nullptr && found->is_object() ? *found : none;
}

const std::vector<Json>& Evaluated::series(const std::string& key) const {
  static const std::vector<Json> none;
  const Json* found = object("series").find(key);
  return found != nullptr && found->is_array() ? found->items() : none;
}

std::string member_text(const Json& json, const std::string& key) {
  const Json* v = json.find(key);
  return v == nullptr || v->is_null() ? "" : v->text();
}

int64_t integer_of(const Json& point, const std::string& key) {
  int64_t value = 0;
  as_data([&] { value = point.integer_at(key, 0); });
  return value;
}

double value_of(const Json& metrics, const std::string& name) {
  const Json* m = metrics.find(name);
  return m != nullptr && m->is_object() ? result_number(*m, "value") : NAN;
}

Precision precision_of(const Json& metrics, const std::string& name) {
  const Json* m = metrics.find(name);
  if (m == nullptr || !m->is_object()) { return {}; }
  return {result_number(*m, "stderr"), result_number(*m, "low"), result_number(*m, "high")};
}

Precision point_precision(const Json& point, const std::string& name) {
  return {result_number(point, name + "_stderr"), result_number(point, name + "_low"),
          result_number(point, name + "_high")};
}

/// A label that can be part of a file name.
std::string file_name(const std::string& label) {
  std::string name;
  for (const char c : printable(label)) {
    if (c == '[' || c == ']') { continue; }
    const bool is_markup = std::string_view("<>\"&\\").find(c) != std::string_view::npos;
    name += c == ' ' || c == '/' || is_markup ? '_' : c == '(' || c == ')' ? '-' : c;
  }
  return name;
}

Results load_evaluations(const std::vector<ReportRun>& runs) {
  Results all;
  std::map<std::string, std::vector<std::string>> measured_on;  // by label
  const auto data_of = [](const Evaluated& e) { return evaluation_data(e.json, is_per_token(e.kind, "")); };
  for (const ReportRun& run : runs) {
    const std::string name_of_run = run.step ? run.metrics.name : run.id;
    for (const fs::path& file : evaluation_files({run.folder, run.step, run.results})) {
      Json json = read_evaluation(file);
      if (member_text(json, "status") != "ok") { continue; }
      const std::string name = file.stem().string(), source = member_text(json, "source"),
                        kind = member_text(json, "kind");
      all.push_back({run.id, name_of_run + "/" + fs::relative(file, run.folder).generic_string(), kind,
                     source.empty() ? name : name + " (" + source + ")", std::move(json), file.parent_path()});
      measured_on[all.back().label].push_back(data_of(all.back()));
    }
  }
  for (Evaluated& e : all) { e.label += data_letter(measured_on[e.label], data_of(e)); }
  return all;
}

Results of_kind(const Results& all, const std::set<std::string>& kinds) {
  Results found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const Evaluated& e) { return kinds.count(e.kind) > 0; });
  return found;
}

std::vector<Results> by_label(const Results& results) {
  std::vector<Results> groups;
  for (const Evaluated& e : results) {
    auto at = std::find_if(groups.begin(), groups.end(), [&](const Results& g) { return g[0].label == e.label; });
    if (at == groups.end()) { at = groups.insert(at, Results{}); }
    at->push_back(e);
  }
  return groups;
}

bool has_several_runs(const Results& results) {
  return std::any_of(results.begin(), results.end(), [&](const Evaluated& e) { return e.run != results[0].run; });
}

void Pivot::set(const Row& row, const std::string& column, double value) {
  add_once(rows_, row);
  add_once(columns_, column);
  values_[{row, column}] = value;
}

void Pivot::set(const Row& row, const std::string& column, double value, const Evaluated& from,
                const Precision& precision, double scale) {
  set(row, column, scale * value);
  add_once(files_[row], from.file);
  precision_[{row, column}] = {scale * precision.error, scale * precision.low, scale * precision.high};
}

Table Pivot::table(bool is_for_programs) const {
  constexpr std::pair<const char*, double Precision::*> kParts[] = {
      {" stderr", &Precision::error}, {" low", &Precision::low}, {" high", &Precision::high}};
  const auto part = [&](const Row& row, const std::string& column, double Precision::*which) {
    const auto found = precision_.find({row, column});
    return found != precision_.end() ? found->second.*which : NAN;
  };
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  const auto has_any = [&](const std::string& column, double Precision::*which) {
    return is_for_programs && std::any_of(rows_.begin(), rows_.end(),
                                          [&](const Row& row) { return std::isfinite(part(row, column, which)); });
  };
  Table t{keys_, {}};
  for (const std::string& column : columns_) {
    add_number_columns(t, {column});
    for (const auto& [name, which] : kParts) {
      if (has_any(column, which)) { add_number_columns(t, {column + name}); }
    }
  }
  if (is_for_programs && !files_.empty()) { t.columns.emplace_back("files"); }
  for (const Row& row : rows_) {
    std::vector<Json> cells(row.begin(), row.end());
    for (const std::string& column : columns_) {
      const auto it = values_.find({row, column});
      const double value = it != values_.end() ? it->second : NAN;
      const auto known = precision_.find({row, column});
      const std::string text =
          !is_for_programs && std::isfinite(value) && known != precision_.end() ? with_error(value, known->second) : "";
      cells.push_back(text.empty() ? number(value) : Json(text));
      for (const auto& [name, which] : kParts) {
        if (has_any(column, which)) { cells.push_back(number(part(row, column, which))); }
      }
    }
    if (is_for_programs && !files_.empty()) {
      const auto files = files_.find(row);
      cells.emplace_back(files != files_.end() ? join(files->second, " ") : "");
    }
    t.rows.push_back(std::move(cells));
  }
  return t;
}

Table Pivot::table() const { return table(false); }
Table Pivot::numbers() const { return table(true); }

Table points_table(const Results& results, const std::string& series) {
  std::vector<std::string> keys;
  for (const Evaluated& e : results) {
    for (const Json& p : e.series(series)) {
      for (const auto& [key, value] : p.members()) { add_once(keys, key); }
    }
  }
  Table t{{"run", "evaluation"}, {}};
  add_number_columns(t, keys);
  t.columns.emplace_back("files");
  for (const Evaluated& e : results) {
    for (const Json& p : e.series(series)) {
      std::vector<Json> row{e.run, e.label};
      for (const std::string& key : keys) { row.push_back(p.find(key) != nullptr ? *p.find(key) : Json()); }
      row.push_back(e.file);
      t.rows.push_back(std::move(row));
    }
  }
  return t;
}

void add_series_chart(ReportPart& part, const Results& results, const SeriesChart& how, const std::string& file) {
  std::vector<Curve> curves;
  std::vector<std::string> names;
  const bool several_runs = has_several_runs(results);
  std::set<std::string> labels;
  for (const Evaluated& e : results) { labels.insert(e.label); }
  for (const Evaluated& e : results) {
    for (const Json& p : e.series(how.series)) {
      std::vector<std::string> parts{several_runs ? e.run : "", labels.size() > 1 ? e.label : "",
                                     how.by.empty() ? "" : member_text(p, how.by)};
      std::erase(parts, "");
      const std::string name = parts.empty() ? e.label : join(parts, " ");
      const size_t i = add_once(names, name);
      if (i == curves.size()) { curves.push_back({name, {}, {}}); }
      curves[i].add(result_number(p, how.x), result_number(p, how.y));
    }
  }
  if (curves.empty()) { return; }
  part.charts.emplace_back(file + ".svg", svg_chart(curves, how.style));
}

}  // namespace hebb
