#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "core/names.h"
#include "study/ladder/ladder.h"
#include "study/report/name_pattern.h"
#include "study/report/parts.h"
#include "study/report/report.h"
#include "study/report/run_identity.h"
#include "study/report/run_results.h"
#include "tools/command_line.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> runs;
  std::string out = "report", tags;
  FitConfig fit;
};

/// The tags that --tags gives a run.
Json tags_of(const Options& o, const std::string& id) {
  if (o.tags.empty()) { return Json::object(); }
  if (const std::optional<Json> tags = tags_in_name(o.tags, id)) { return *tags; }
  throw ConfigError("hebb report", "the run " + id + ", which --tags " + o.tags + " does not match",
                    "runs whose names match; a {tag} stands for letters and digits");
}

/// The runs that a word names: a run folder, results without a run, or those in a folder.
std::vector<std::string> run_folders(const std::string& path) {
  const bool is_one = fs::exists(fs::path(path) / "config.json") || !run_place(path).results.empty();
  if (is_one || !fs::is_directory(path)) { return {path}; }
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const bool is_run = fs::exists(entry.path() / "metrics.jsonl") || run_place(entry.path()).step.has_value();
    const bool is_results = entry.is_directory() && !run_place(entry.path()).results.empty();
    if (is_results || (fs::exists(entry.path() / "config.json") && is_run)) { found.push_back(entry.path().string()); }
  }
  if (found.empty()) {
    throw DataError(path, "no run here", "a folder without config.json, runs or results of hebb eval in it",
                    "a run folder, a folder of results, or a folder of those");
  }
  std::sort(found.begin(), found.end());
  return found;
}

int terminal_width() {
  winsize size{};
  return isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20
             ? std::min<int>(size.ws_col, 120)
             : 80;
}

/// " [data A]" where runs were measured on different data.
std::string letter_of(const std::vector<ReportRun>& runs, const ReportRun& run, const std::string& key) {
  std::vector<std::string> all;
  for (const ReportRun& r : runs) { all.push_back(member_text(r.result, key)); }
  std::erase(all, "");
  const std::string own = member_text(run.result, key);
  return own.empty() ? "" : data_letter(all, own);
}

void run_report(const Options& o, const std::string& fit_options) {
  if (o.runs.size() == 1 && is_ladder(o.runs[0])) {
    if (!fit_options.empty()) {
      throw ConfigError("hebb report", "the sweep of a ladder has tags and fit; leave out " + fit_options);
    }
    std::printf("wrote %s\n", write_ladder_report(o.runs[0], o.out).string().c_str());
    return;
  }
  std::vector<ReportRun> runs;
  std::vector<Curve> curves;
  std::set<fs::path> seen;
  std::vector<std::string> paths;
  for (const std::string& word : o.runs) {
    // A pattern of a shell, checkpoints/*, names the pointer beside the checkpoints.
    if (o.runs.size() > 1 && fs::path(word).filename() == "latest" && fs::is_regular_file(word)) { continue; }
    const std::vector<std::string> folders = run_folders(word);
    paths.insert(paths.end(), folders.begin(), folders.end());
  }
  for (const std::string& path : paths) {
    if (!seen.insert(fs::weakly_canonical(fs::absolute(path))).second) {
      throw ConfigError("hebb report", path + " twice", "different runs");  // a repetition would count as a second seed
    }
  }
  for (const std::string& path : paths) {
    runs.push_back(read_report_run(path));
    const bool is_taken =
        std::any_of(runs.begin(), runs.end() - 1, [&](const ReportRun& r) { return r.id == runs.back().id; });
    if (is_taken && !runs.back().results.empty()) { runs.back() = read_report_run(path, path); }
    if (!o.tags.empty()) { runs.back() = read_report_run(path, runs.back().id, tags_of(o, runs.back().id)); }
  }
  for (const ReportRun& run : runs) {
    if (!run.results.empty()) { continue; }  // no training
    Curve c = run.metrics.loss;
    c.name = (paths.size() > 1 ? run.id : c.name) + letter_of(runs, run, "loss@data");
    curves.push_back(c);
    for (Curve v : run.metrics.validation) {
      const std::string letter = letter_of(runs, run, "val." + v.name + "@data");
      v.name = (paths.size() > 1 ? run.id + ": " : "") + "validation " + v.name + letter;
      curves.push_back(v);
    }
  }
  if (!curves.empty()) {
    std::printf("%s", printable(text_chart(curves, "loss [nats per token]", terminal_width(), 22), true).c_str());
  }
  std::optional<FitConfig> fit;
  if (!o.fit.by.empty()) {
    fit = o.fit;
    if (std::none_of(runs.begin(), runs.end(),
                     [&](const ReportRun& r) { return r.result.find(o.fit.by) != nullptr; })) {
      throw ConfigError("hebb report", "--by " + o.fit.by, "a tag that --tags names, or a key of the results");
    }
  }
  std::printf("wrote %s\n", write_report(runs.size() == 1 ? runs[0].id : "Report", runs, fit, o.out).string().c_str());
}

}  // namespace

void add_report_verb(Command program) {
  Command verb = program.verb("report", "Tables, scaling fits and vector plots of runs or of a ladder");
  const auto o = std::make_shared<Options>();
  verb.option("RUN", o->runs, "Run folders, checkpoints, folders of them, or the folder of a ladder").required();
  verb.option("--tags", o->tags, "Pattern that gives runs tags by their names: L{level}-{arch}").type_name("PATTERN");
  verb.option("--by", o->fit.by, "Tag: a scaling fit for each of its values").type_name("TAG");
  verb.option("--x", o->fit.x, "Key of the results that the fit is over");
  verb.option("--y", o->fit.y, "Key of the results that is fitted");
  verb.option("-o,--out", o->out, "Folder for the page and the drawings");
  verb.footer(
      "hebb report runs/a runs/b -o report\n"
      "hebb report runs/a/checkpoints -o report\n"
      "Page: docs/verbs/report.md");
  verb.runs([o, verb] {
    std::string fit_options;
    for (const char* name : {"--tags", "--by", "--x", "--y"}) {
      if (verb.is_given(name)) { fit_options += (fit_options.empty() ? "" : ", ") + std::string(name); }
    }
    run_report(*o, fit_options);
  });
}

}  // namespace hebb
