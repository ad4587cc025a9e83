#pragma once
#include <optional>
#include <string>
#include <vector>

#include "study/report/fit.h"
#include "study/report/read_metrics.h"

namespace hebb {

struct ReportPart;

struct ReportRun {
  std::string id;
  fs::path folder;
  RunMetrics metrics;
  Json result;  // study/report/run_results.h
  Json config = {};
  std::optional<int64_t> step{};  // of the checkpoint; absent: all of the run
  fs::path results{};             // folder of result files, where there is no run
};

/// `folder`: a run folder; a checkpoint of a run, whose id is RUN:STEP by default; or results without a run, whose id
/// is the folder's name.
ReportRun read_report_run(const fs::path& folder, const std::string& id = "", const Json& tags = Json::object());

/// Writes index.html (self-contained), report.md, results.{md,csv,json}, plots/*.svg and, where there is something to
/// fit, fit.json into `out`; returns the page's path. `planned`: runs that are predicted only (planned_result()).
/// `published`: a section behind the results, or null.
fs::path write_report(const std::string& title, const std::vector<ReportRun>& runs, const std::optional<FitConfig>& fit,
                      const fs::path& out, const std::vector<Json>& planned = {},
                      const ReportPart* published = nullptr);

}  // namespace hebb
