#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/append_file.h"

namespace hebb {

using Scalars = std::vector<std::pair<std::string, double>>;

// Encodings of TensorBoard event files (docs/formats/metrics.md).
std::string tensorboard_record(std::string_view data);
std::string tensorboard_version_event(double wall_seconds);
/// A run starts here: readers forget what earlier files have from `step` on.
std::string tensorboard_start_event(double wall_seconds, int64_t step);
std::string tensorboard_scalar_event(double wall_seconds, int64_t step, const Scalars& values);

/// Writes scalars to a new events file in `folder` (created), of a run that goes on behind `step`.
class TensorBoardWriter {
 public:
  TensorBoardWriter(const fs::path& folder, int64_t step);
  void add(int64_t step, const Scalars& values);
  /// AppendFile::sync().
  std::string sync() { return file_.sync(); }

 private:
  AppendFile file_;
};

}  // namespace hebb
