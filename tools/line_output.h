#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/files.h"
#include "tools/output_lock.h"

namespace hebb {

/// Lines for a file or, as "-", for standard output. The file appears under its name when finish()
/// has been called, and is on the disk then; without it nothing is left. Errors: CheckpointError (folder, another
/// process that writes the file, full disk, closed pipe).
class LineOutput {
 public:
  explicit LineOutput(const std::string& path);
  void line(std::string_view text);
  void finish();

 private:
  fs::path path_;
  std::optional<OutputLock> lock_;    // none for standard output and devices
  std::unique_ptr<FileWriter> file_;  // null: standard output
};

}  // namespace hebb
