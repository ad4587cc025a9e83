#pragma once
// What sections of a report about evaluations are made of.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "study/report/chart.h"
#include "study/report/group_by_seed.h"
#include "study/report/report.h"
#include "study/report/table.h"

namespace hebb {

/// A section of a report.
struct ReportPart {
  std::string title, text;
  Table table;
  std::string csv_file{};                                     // of the table; empty: none of its own
  bool is_long = false;                                       // the table is left to the file
  std::vector<std::pair<std::string, std::string>> charts{};  // file names and SVG
  std::vector<std::pair<std::string, Table>> files{};         // further tables, for programs
  Table numbers{};  // for csv_file, the last column names the result files; without columns it is the table
};

/// One result file. Results on different data, or per token of different tokenizers, have different labels.
struct Evaluated {
  std::string run, file, kind, label;  // file: RUN/evals/...; label: the name, and the source where the file says one
  Json json;
  fs::path folder = {};  // of the file

  /// The object under `key`, or an empty one.
  const Json& object(const std::string& key) const;
  /// The points of a series; none where there is no such series.
  const std::vector<Json>& series(const std::string& key) const;
};
using Results = std::vector<Evaluated>;

/// Evaluations of the runs that went well.
Results load_evaluations(const std::vector<ReportRun>& runs);
Results of_kind(const Results& all, const std::set<std::string>& kinds);
/// Those of the same label together, in order of first appearance.
std::vector<Results> by_label(const Results& results);
bool has_several_runs(const Results& results);

/// A member as text; "" where there is none.
std::string member_text(const Json& json, const std::string& key);
/// An integer member of a point; 0 where there is none. Errors: DataError.
int64_t integer_of(const Json& point, const std::string& key);
/// The value of a metric {"value": …}, or NaN.
double value_of(const Json& metrics, const std::string& name);
/// How well it is known.
Precision precision_of(const Json& metrics, const std::string& name);
/// The same of NAME of a point of a series: NAME_stderr, NAME_low, NAME_high.
Precision point_precision(const Json& point, const std::string& name);
/// A label that can be part of a file name.
std::string file_name(const std::string& label);

/// The place of a value in a list, to whose end it is added where it is not in it.
template <class T> size_t add_once(std::vector<T>& list, const T& value) {
  const auto at = std::find(list.begin(), list.end(), value);
  const auto place = static_cast<size_t>(at - list.begin());
  if (at == list.end()) { list.push_back(value); }
  return place;
}

/// A table of numbers that fills up in any order: a row per key, a column per name, and the files of each row.
class Pivot {
 public:
  using Row = std::vector<std::string>;
  explicit Pivot(std::vector<TableColumn> keys) : keys_(std::move(keys)) {}

  void set(const Row& row, const std::string& column, double value);
  /// The same, and the row names the file. `precision` of values that are multiplied by `scale`.
  void set(const Row& row, const std::string& column, double value, const Evaluated& from,
           const Precision& precision = {}, double scale = 1);
  const std::vector<Row>& rows() const { return rows_; }
  /// The rows for people, "value ± standard error" where that is known.
  Table table() const;
  /// The rows for programs: columns for standard errors and intervals, and the files where rows name any.
  Table numbers() const;

 private:
  std::vector<TableColumn> keys_;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
  Table table(bool is_for_programs) const;

  std::map<std::pair<Row, std::string>, double> values_;
  std::map<std::pair<Row, std::string>, Precision> precision_;
  std::map<Row, std::vector<std::string>> files_;
};

/// All points of a series as they are, for programs.
Table points_table(const Results& results, const std::string& series);

/// How a series is drawn: a curve for every run, label and value of `by` ("": none).
struct SeriesChart {
  std::string series, x, y, by;
  ChartStyle style;
};
/// Adds the drawing FILE.svg where there is anything to draw.
void add_series_chart(ReportPart& part, const Results& results, const SeriesChart& how, const std::string& file);

/// Rows of runs that differ in seeds alone: means with intervals, a drawing for each statistic.
ReportPart report_seeds(const std::vector<Json>& results);
/// Paired tests of each row against the first one, of the same value of the tag `level` ("": of all). Nothing where no
/// two rows have two seeds in common.
std::vector<ReportPart> report_seed_tests(const std::vector<Json>& results, const std::string& level);
/// Recall on generated rows against the state of a decoder, rows of runs that differ in seeds alone: a table of all
/// settings, a drawing for each.
std::vector<ReportPart> report_recall(const Results& all, const std::vector<Json>& results);
/// Bytes of state and seconds of prefill by length, rows of runs that differ in seeds alone.
std::vector<ReportPart> report_cost(const Results& all, const std::vector<Json>& results);
/// Scores and kept shares of the groups of `selection`, rows of runs that differ in seeds alone.
std::vector<ReportPart> report_selection(const Results& all, const std::vector<Json>& results);
/// Date, version, machine, device and precision of each run; no rows where no run has a log.
Table run_details(const std::vector<ReportRun>& runs);

// The sections (docs/verbs/report.md). Results of different `source` have columns and curves of their own.
std::vector<ReportPart> report_tasks(const Results& all);          // by position, short context, needles, RULER
std::vector<ReportPart> report_needle_depths(const Results& all);  // needles by depth and length
std::vector<ReportPart> report_differences(const Results& all);    // to the first run, on the same examples
std::vector<ReportPart> report_memories(const Results& all);       // adaptation, use of memories

}  // namespace hebb
