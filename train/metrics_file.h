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

 private:
  std::set<std::string> validated_;
  int64_t removed_ = 0;
  AppendFile file_;
};

}  // namespace hebb
