#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "core/append_file.h"
#include "core/json.h"

namespace hebb {

/// RUN/metrics.jsonl (docs/formats/metrics.md): one object per line, each written at once.
class MetricsFile {
 public:
  /// Opens the file for a run that continues after `step` completed steps: lines of later steps, and
  /// a last line that a killed process left unfinished, are removed first.
  /// Errors: CheckpointError; for a line that is no metrics line with its number.
  MetricsFile(const fs::path& path, int64_t step);

  void add(const Json& line);
  /// Names of validation sources with a line at the step that the run continues after.
  const std::set<std::string>& validated() const { return validated_; }
  int64_t removed_lines() const { return removed_; }
  /// The step of the last line that is kept; 0: none.
  int64_t last_step() const { return last_step_; }
  /// AppendFile::sync().
  std::string sync() { return file_.sync(); }

 private:
  const fs::path& trim(const fs::path& path, int64_t step);

  std::set<std::string> validated_;
  int64_t removed_ = 0, last_step_ = 0;
  AppendFile file_;
};

}  // namespace hebb
