#include "study/report/report.h"

#include <fmt/core.h>

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "core/folders.h"
#include "core/retry.h"
#include "study/report/fit.h"
#include "study/report/group_by_seed.h"
#include "study/report/page.h"
#include "study/report/parts.h"
#include "study/report/run_identity.h"
#include "study/report/run_results.h"

namespace hebb {
namespace {

constexpr size_t kFewRuns = 8;      // more are too many for several charts of each
constexpr size_t kManyCurves = 24;  // more are too many for a legend entry each

/// " [data A]" as part of a file's name: "_A".
std::string file_part(const std::string& letter) {
  return letter.empty() ? "" : "_" + letter.substr(7, letter.size() - 8);
}

class Report {
 public:
  Report(const std::string& title, const std::vector<ReportRun>& runs, const std::optional<FitConfig>& fit,
         const fs::path& out, const std::vector<Json>& planned)
      : title_(title), runs_(runs), fit_(fit), planned_(planned), out_(out) {
    for (const ReportRun& run : runs) { results_.push_back(run.result); }
    page_.heading(1, title);
  }

  fs::path write(const ReportPart* published) {
    create_folders(out_ / "plots");
    remove_begun();
    differences();
    seeds();
    results();
    if (runs_.empty()) {
      page_.paragraph("No run has finished yet.");
      return finish();
    }
    if (published != nullptr) { section(*published); }
    if (fit_) {
      fits();
      levels();
    }
    loss_curves();
    if (runs_.size() <= kFewRuns) { optimizer_curves(); }
    evaluations();
    memory_statistics();
    return finish();
  }

 private:
  /// What processes that were killed had begun. Several may write here: the last one wins.
  void remove_begun() const {
    std::vector<fs::path> begun;
    for (const fs::path& folder : {out_, out_ / "plots"}) {
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string(), mark = ".tmp-";
        const size_t at = name.rfind(mark);
        const bool is_begun = at != std::string::npos && is_dead(name.substr(at + mark.size()));
        if (is_begun && entry.is_regular_file()) { begun.push_back(entry.path()); }
      }
    }
    for (const fs::path& file : begun) {
      retried_or_throws([&] { return fs::remove(file); });
    }
  }

  /// Whether that is the number of no process.
  static bool is_dead(const std::string& number) {
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), pid);
    return error == std::errc() && end == number.data() + number.size() && pid > 0 && ::kill(pid, 0) != 0 &&
           errno == ESRCH;
  }

  fs::path finish() const {
    write_file_atomic(out_ / "report.md", page_.markdown());
    write_file_atomic(out_ / "index.html", page_.html(title_));
    return out_ / "index.html";
  }

  void chart(const std::string& file, const std::string& svg, Page::Size size = Page::Size::normal) {
    write_file_atomic(out_ / "plots" / file, svg);
    page_.drawing(file, svg, size);
  }

  /// In what the runs differ: what a comparison of them is about.
  void differences() {
    std::vector<std::string> ids;
    std::vector<Json> configs;
    for (const ReportRun& run : runs_) {
      if (run.config.is_null()) { continue; }
      ids.push_back(run.id);
      configs.push_back(run.config);
    }
    if (ids.size() < 2) { return; }
    Table table = config_differences(ids, configs);
    if (table.rows.empty()) {
      page_.heading(2, "Configurations");
      page_.paragraph("They are the same.");
      return;
    }
    constexpr size_t kMost = 40;
    write_file_atomic(out_ / "differences.csv", table.csv());
    const bool is_wide = table.columns.size() > kMost, is_long = table.rows.size() > kMost;
    if (is_long) { table.rows.resize(kMost); }
    page_.heading(2, "What differs between the configurations");
    if (!is_wide) { page_.table(table); }
    if (is_wide || is_long) { page_.paragraph("All of it: differences.csv."); }
  }

  /// Runs that differ in seeds only as one row; nothing where no setting has several.
  void seeds() {
    const std::vector<Json> rows = over_seeds(results_);
    if (has_seeds(rows)) {
      page_.heading(2, "Results over seeds");
      page_.table(comparison_table(rows));
      page_.paragraph(
          "Mean ± sample standard deviation over runs whose configurations differ in seeds only; numbers in full: "
          "seeds.csv.");
      write_file_atomic(out_ / "seeds.csv", results_table(rows).csv());
    }
    std::string repeated;
    for (size_t i = 0; i < results_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (has_same_seeds(results_[i], results_[j])) {
          repeated += (repeated.empty() ? "" : ", ") + runs_[i].id + " (" + runs_[j].id + ")";
          break;
        }
      }
    }
    if (!repeated.empty()) {
      page_.paragraph("Left out of the means, since configuration and seeds equal another run's: " + repeated + ".");
    }
  }

  void results() {
    const Table table = comparison_table(results_), all = results_table(results_);
    const auto has_letter = [](const TableColumn& column) { return column.title.find("[data ") != std::string::npos; };
    page_.heading(2, runs_.size() > 1 ? "Results of each run" : "Results");
    if (!runs_.empty()) { page_.table(table); }
    page_.paragraph(
        "From config.json, metrics.jsonl and evals/ of each run; full numbers in results.csv and results.json.");
    if (std::any_of(all.columns.begin(), all.columns.end(), has_letter)) {
      page_.paragraph(
          "A letter for each: values on different data, or per token of different tokenizers, do not compare.");
    }
    not_finite();
    write_file_atomic(out_ / "results.md", table.markdown());
    write_file_atomic(out_ / "results.csv", all.csv());
    write_file_atomic(out_ / "results.json", Json::array(results_).dump(1) + "\n");
  }

  /// Says which losses are not finite: fits, means over seeds and curves leave them out.
  void not_finite() {
    std::string list;
    for (const Json& result : results_) {
      for (const auto& [key, value] : result.members()) {
        const bool is_loss = key.starts_with("loss.") || key.starts_with("val.");
        if (is_loss && value.is_number() && !std::isfinite(value.as_double())) {
          list += (list.empty() ? "" : ", ") + key + " of " + result.at("id").as_string();
        }
      }
    }
    if (list.empty()) { return; }
    page_.paragraph("Not finite: " + list +
                    ". Fits and curves leave them out, and there is no mean over seeds with them.");
  }

  void fits() {
    std::vector<Json> all = results_;
    all.insert(all.end(), planned_.begin(), planned_.end());
    const std::vector<FitGroup> groups = fit_groups(all, *fit_);
    if (groups.empty()) { return; }
    page_.heading(2, "Scaling");
    write_fits(page_, groups, *fit_);
    const std::string measured = fit_->y.starts_with("loss.") ? "loss" : fit_->y;
    if (std::any_of(runs_.begin(), runs_.end(), [&](const ReportRun& r) { return !letter_of(r, measured).empty(); })) {
      page_.paragraph(
          "The runs were measured on different data or tokenizers, so that these curves mix what does not compare.");
    }
    write_file_atomic(out_ / "fit.json", fit_json(groups, *fit_).dump(1) + "\n");
    std::string files = "fit.json";
    for (const auto& [file, table] : fit_tables(groups, *fit_)) {
      write_file_atomic(out_ / file, table.csv());
      files += ", " + file;
    }
    page_.paragraph("Numbers in full: " + files + ".");
    if (std::any_of(groups.begin(), groups.end(), [](const FitGroup& g) { return g.fit.has_value(); })) {
      chart("scaling.svg", fit_chart(groups, *fit_));
    }
  }

  /// Groups side by side at each value of the tag fit.level; runs that differ in seeds only are one value, their mean.
  void levels() {
    struct Cell {
      double mean = NAN, deviation = NAN;
      int settings = 0;
      std::string data = {};  // that it was measured on
    };
    std::vector<std::string> groups, levels;
    std::map<std::pair<std::string, std::string>, Cell> cells;
    const std::vector<Json> rows = over_seeds(results_);
    for (const Json& row : rows) {
      const std::string group = fit_->by.empty() ? "" : member_text(row, fit_->by),
                        level = member_text(row, fit_->level);
      if (!group.empty() && !level.empty()) {
        add_once(groups, group);
        add_once(levels, level);
        if (const double y = result_number(row, fit_->y); std::isfinite(y)) {
          Cell& cell = cells[{level, group}];
          cell = {y, result_number(row, fit_->y + ".std"), cell.settings + 1,
                  member_text(row, (fit_->y.starts_with("loss.") ? "loss" : fit_->y) + "@data")};
        }
      }
    }
    if (groups.size() < 2) { return; }
    Table table{{fit_->level}, {}};
    add_number_columns(table, groups);
    Table shown = table;
    for (const std::string& l : levels) {
      shown.rows.push_back({l});
      table.rows.push_back({l});
      for (const std::string& g : groups) {
        const Cell cell = cells[{l, g}], base = cells[{l, groups[0]}];
        std::string text =
            std::isfinite(cell.deviation) ? mean_text(cell.mean, cell.deviation) : fmt::format("{:.5g}", cell.mean);
        if (g != groups[0] && base.settings == 1 && base.data == cell.data) {
          text += fmt::format(" ({:+.4f})", cell.mean - base.mean);
        }
        // Several settings (learning rates, say) are no repetitions: which of them counts is not for a table to choose.
        shown.rows.back().push_back(cell.settings == 0  ? Json()
                                    : cell.settings > 1 ? Json(fmt::format("{:d} settings", cell.settings))
                                                        : Json(text));
        table.rows.back().push_back(cell.settings == 1 ? Json(cell.mean) : Json());
      }
    }
    write_file_atomic(out_ / "levels.csv", table.csv());
    page_.heading(2, fit_->y + " by " + fit_->level);
    page_.paragraph(std::string(has_seeds(rows) ? "Mean ± sample standard deviation over seeds; in" : "In") +
                    " parentheses: difference to the first column. From results.json.");
    page_.table(shown);
  }

  /// What the value under `key` of a run was measured on, as others may see it: "" or " [data A]".
  std::string letter_of(const ReportRun& run, const std::string& key) const {
    const auto text = [&](const Json& result) { return member_text(result, key + "@data"); };
    std::vector<std::string> all;
    for (const Json& result : results_) {
      if (!text(result).empty()) { all.push_back(text(result)); }
    }
    return text(run.result).empty() ? "" : data_letter(all, text(run.result));
  }

  /// Whether any is a run: results of evaluations have no curves.
  bool has_training() const {
    return std::any_of(runs_.begin(), runs_.end(), [](const ReportRun& run) { return run.results.empty(); });
  }

  /// One drawing for each kind of data. Every run has its own line and name; where they are many, the colour and name
  /// of its group.
  void loss_curves() {
    if (!has_training()) { return; }
    std::map<std::string, std::vector<Curve>> training, validation;  // by letter
    std::vector<std::string> groups;
    const bool names_runs = runs_.size() <= kManyCurves;
    for (const ReportRun& run : runs_) {
      const Json* tag = fit_ && !fit_->by.empty() && !names_runs ? run.result.find(fit_->by) : nullptr;
      const std::string group = tag == nullptr ? run.id : tag->text();
      const size_t known = groups.size();
      const auto colour = static_cast<int>(add_once(groups, group));
      const bool is_new = groups.size() > known;
      Curve c = run.metrics.loss;
      c.name = is_new ? group : "";
      c.colour = colour;
      training[letter_of(run, "loss")].push_back(c);
      for (const Curve& v : run.metrics.validation) {
        Curve named = v;
        named.name = group + ": " + v.name;
        named.colour = run.metrics.validation.size() == 1 ? colour : -1;
        named.mark = v.x.size() == 1 ? Mark::points : Mark::line;
        validation[letter_of(run, "val." + v.name)].push_back(named);
      }
    }
    page_.heading(2, "Loss");
    const char* const axis = "cross-entropy [nats per token]";
    for (const auto& [letter, curves] : training) {
      chart("loss" + file_part(letter) + ".svg",
            svg_chart(curves, {"Training loss" + letter, "optimizer steps", axis}));
    }
    for (const auto& [letter, curves] : validation) {
      const bool has_course = std::any_of(curves.begin(), curves.end(), [](const Curve& c) { return c.x.size() > 1; });
      if (!has_course || curves.size() > kManyCurves) { continue; }
      chart("validation" + file_part(letter) + ".svg",
            svg_chart(curves, {"Validation loss" + letter, "optimizer steps", axis}));
    }
  }

  void optimizer_curves() {
    if (!has_training()) { return; }
    std::vector<Curve> lr, norm;
    for (const ReportRun& run : runs_) {
      lr.push_back({run.id, run.metrics.lr.x, run.metrics.lr.y});
      norm.push_back({run.id, run.metrics.grad_norm.x, run.metrics.grad_norm.y});
    }
    page_.heading(2, "Optimizer");
    chart("lr.svg", svg_chart(lr, {"Learning rate", "optimizer steps", "learning rate"}));
    chart("grad_norm.svg", svg_chart(norm, {"Gradient norm before clipping", "optimizer steps", "norm", false, true}));
  }

  /// Evaluations, kind by kind.
  void evaluations() {
    const Results all = load_evaluations(runs_);
    std::vector<ReportPart> parts = report_tasks(all);
    for (const auto& more : {report_needle_depths, report_memories, report_differences}) {
      for (ReportPart& part : more(all)) { parts.push_back(std::move(part)); }
    }
    for (const ReportPart& part : parts) { section(part); }
  }

  void section(const ReportPart& part) {
    page_.heading(2, part.title);
    if (!part.text.empty()) { page_.paragraph(part.text); }
    if (!part.is_long) { page_.table(part.table); }
    if (!part.csv_file.empty()) {
      write_file_atomic(out_ / part.csv_file, (part.numbers.columns.empty() ? part.table : part.numbers).csv());
      page_.paragraph("Numbers in full: " + part.csv_file + ".");
    }
    for (const auto& [file, table] : part.files) { write_file_atomic(out_ / file, table.csv()); }
    for (const auto& [file, svg] : part.charts) { chart(file, svg); }
  }

  /// What layers report: a table of last values, and curves where few runs leave room.
  void memory_statistics() {
    std::map<std::string, std::vector<Curve>> curves;
    Table table{{"run", "layer", "statistic", {"value", TableColumn::Kind::number}, "files"}, {}};
    Pivot side_by_side({{"statistic"}, {"layer"}});
    for (const ReportRun& run : runs_) {
      for (const auto& [name, layers] : run.metrics.statistics) {
        for (Curve c : layers) {
          const bool is_number = !c.y.empty() && std::isfinite(c.y.back());
          table.rows.push_back(
              {run.id, c.name, name, is_number ? Json(c.y.back()) : Json(), run.id + "/metrics.jsonl"});
          side_by_side.set({name, c.name}, run.id, is_number ? c.y.back() : NAN);
          c.name = runs_.size() > 1 ? run.id + " " + c.name : c.name;
          curves[name].push_back(std::move(c));
        }
      }
    }
    if (table.rows.empty()) { return; }
    write_file_atomic(out_ / "memory.csv", table.csv());
    const bool is_shown = runs_.size() <= kFewRuns;
    page_.heading(2, "Memory statistics");
    page_.paragraph(is_shown ? "At the last logged step; numbers in full: memory.csv."
                             : "At the last logged step: in memory.csv.");
    if (is_shown) { page_.table(side_by_side.table()); }
    for (const auto& [name, list] : curves) {
      if (list.size() <= kManyCurves) {
        chart("memory_" + name + ".svg", svg_chart(list, {name, "optimizer steps", name}), Page::Size::small);
      }
    }
  }

  const std::string title_;
  const std::vector<ReportRun>& runs_;
  const std::optional<FitConfig>& fit_;
  const std::vector<Json>& planned_;
  fs::path out_;
  std::vector<Json> results_;
  Page page_;
};

}  // namespace

ReportRun read_report_run(const fs::path& folder, const std::string& id, const Json& tags) {
  const RunPlace place = run_place(folder);
  ReportRun run{id, place.run, {}, Json()};
  run.step = place.step;
  run.results = place.results;
  if (!place.results.empty()) {
    const fs::path whole = fs::absolute(folder).lexically_normal();
    run.metrics.name = (whole.filename().empty() ? whole.parent_path() : whole).filename().string();
    run.id = id.empty() ? run.metrics.name : id;
    run.result = result_of(place, run.id, tags);
    return run;
  }
  if (!fs::exists(place.run / "metrics.jsonl")) {
    throw DataError(folder.string(), "neither a run nor results", "no metrics.jsonl, and no result of hebb eval",
                    "a run folder, or a folder in which hebb eval has written results");
  }
  run.metrics = place.step ? read_metrics(place.run, *place.step) : read_metrics(place.run);
  if (id.empty()) { run.id = run.metrics.name + (place.step ? fmt::format(":{:d}", *place.step) : ""); }
  run.result = result_of(place, run.id, tags);
  run.config = parse_json_file(place.config().string());
  return run;
}

fs::path write_report(const std::string& title, const std::vector<ReportRun>& runs, const std::optional<FitConfig>& fit,
                      const fs::path& out, const std::vector<Json>& planned, const ReportPart* published) {
  return Report(title, runs, fit, out, planned).write(published);
}

}  // namespace hebb
