#include "study/report/report.h"

#include <fmt/core.h>

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "core/folders.h"
#include "core/plural.h"
#include "core/retry.h"
#include "core/statistics.h"
#include "study/report/fit.h"
#include "study/report/group_by_seed.h"
#include "study/report/meanings.h"
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
    introduction();
    if (runs_.empty()) {
      page_.paragraph("No run has finished yet.");
      return finish();
    }
    seeds();
    results();
    if (fit_) { levels(); }
    if (published != nullptr) { section(*published); }
    loss_curves();
    if (runs_.size() <= kFewRuns) { optimizer_curves(); }
    const Results all = load_evaluations(runs_);
    for (const auto& evaluations : {report_tasks, report_needle_depths, report_memories}) {
      for (const ReportPart& part : evaluations(all)) { section(part); }
    }
    for (const auto& by_row : {report_recall, report_selection, report_cost}) {
      for (const ReportPart& part : by_row(all, results_)) { section(part); }
    }
    memory_statistics();
    for (const ReportPart& part : report_seed_tests(results_, fit_ ? fit_->level : "")) { section(part); }
    for (const ReportPart& part : report_differences(all)) { section(part); }
    if (fit_) { fits(); }
    meanings(all);
    details();
    differences();
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

  void introduction() {
    size_t trained = 0;
    for (const ReportRun& run : runs_) { trained += run.results.empty() ? 1 : 0; }
    const std::string what = trained == runs_.size() ? plural(runs_.size(), "run")
                             : trained == 0          ? plural(runs_.size(), "folder") + " of results"
                                                     : fmt::format("{} and {} of results", plural(trained, "run"),
                                                                   plural(runs_.size() - trained, "folder"));
    page_.paragraph("What hebb report found in " + what +
                    ": first results and curves, then tests and fits, then what each number means, when and with what "
                    "it was made, and how the configurations differ. Every number is also in a file beside this page.");
  }

  /// What the columns of results mean.
  void meanings(const Results& all) {
    std::map<std::string, std::string> kinds;
    for (const Evaluated& e : all) { kinds[fs::path(e.file).stem().string()] = e.kind; }
    std::vector<std::string> keys = result_keys(results_);
    std::erase_if(keys, is_detail);
    const Table table = meanings_of(keys, kinds);
    if (table.rows.empty()) { return; }
    page_.heading(2, "What the numbers are");
    page_.paragraph("Pages are those of hebb's documentation. What layers report is on their pages in docs/layers/.");
    page_.table(table);
  }

  void details() {
    const Table table = run_details(runs_);
    if (table.rows.empty()) { return; }
    write_file_atomic(out_ / "details.csv", table.csv());
    page_.heading(2, "Details");
    page_.paragraph("From train.log and the events files of each run: details.csv.");
    if (table.rows.size() <= kManyCurves) { page_.table(table); }
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
    page_.paragraph("Keys that somebody wrote. A layer that only some runs have is one line.");
    if (!is_wide) { page_.table(table); }
    if (is_wide || is_long) { page_.paragraph("All of it: differences.csv."); }
  }

  /// Runs that differ in seeds only as one row; a sentence where no setting has several.
  void seeds() {
    if (has_seeds(over_seeds(results_))) {
      section(report_seeds(results_), Page::Size::small);
    } else if (has_training()) {
      page_.paragraph("One seed for each configuration: there are no intervals over seeds and no tests.");
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
    page_.table(table);
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
      double mean = NAN, half = NAN;
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
          cell = {y, result_number(row, fit_->y + ".half"), cell.settings + 1,
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
            std::isfinite(cell.half) ? mean_text(cell.mean, cell.half) : fmt::format("{:.5g}", cell.mean);
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
    page_.paragraph(std::string(has_seeds(rows) ? "Mean ± half of its 95 % interval over seeds; in" : "In") +
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

  /// The mean over the runs of each row at the steps that all have, with its 95 % interval as a band.
  void mean_curves(const char* axis) {
    std::map<std::string, std::pair<std::vector<Curve>, std::vector<Band>>> drawings;  // by title
    int colour = 0;
    for (const SeedGroup& group : seed_groups(results_)) {
      if (group.runs.size() < 2) { continue; }
      std::map<std::string, std::map<double, std::vector<double>>> values;  // by title and step
      const auto add = [&](const std::string& title, const Curve& curve) {
        for (size_t i = 0; i < curve.x.size(); ++i) {
          if (std::isfinite(curve.y[i])) { values[title][curve.x[i]].push_back(curve.y[i]); }
        }
      };
      for (const ReportRun& run : runs_) {
        const bool is_in = std::any_of(group.runs.begin(), group.runs.end(),
                                       [&](const Json& r) { return r.at("id").as_string() == run.id; });
        if (!is_in) { continue; }
        add("Training loss" + letter_of(run, "loss"), run.metrics.loss);
        for (const Curve& v : run.metrics.validation) {
          add("Validation loss " + v.name + letter_of(run, "val." + v.name), v);
        }
      }
      for (const auto& [title, steps] : values) {
        Curve mean{group.id, {}, {}, Mark::line, colour};
        Band band{{}, {}, {}, colour};
        for (const auto& [step, of_runs] : steps) {
          if (of_runs.size() < group.runs.size()) { continue; }
          const SampleMean m = sample_mean(of_runs);
          mean.add(step, m.mean);
          band.x.push_back(step);
          band.low.push_back(m.mean - *m.half);
          band.high.push_back(m.mean + *m.half);
        }
        if (mean.x.size() < 2) { continue; }
        drawings[title].first.push_back(std::move(mean));
        drawings[title].second.push_back(std::move(band));
      }
      ++colour;
    }
    for (const auto& [title, drawing] : drawings) {
      chart("mean_" + file_name(title) + ".svg",
            svg_chart(drawing.first, {title + ", mean and 95 % interval", "optimizer steps", axis}, drawing.second));
    }
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
    mean_curves(axis);
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

  void section(const ReportPart& part, Page::Size size = Page::Size::normal) {
    page_.heading(2, part.title);
    if (!part.text.empty()) { page_.paragraph(part.text); }
    if (!part.is_long) { page_.table(part.table); }
    if (!part.csv_file.empty()) {
      write_file_atomic(out_ / part.csv_file, (part.numbers.columns.empty() ? part.table : part.numbers).csv());
      page_.paragraph("Numbers in full: " + part.csv_file + ".");
    }
    for (const auto& [file, table] : part.files) { write_file_atomic(out_ / file, table.csv()); }
    for (const auto& [file, svg] : part.charts) { chart(file, svg, size); }
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
