#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/files.h"

namespace hebb {

/// Whether the path leads to this open file.
bool is_at(const fs::path& path, const Descriptor& file);

/// Renames what lies at `path` to PATH.replaced, or with a number behind it where that is taken. Says what has become
/// of the file that was there before: "PATH was deleted" or "PATH was replaced; what lay there is PATH.replaced".
std::string set_aside(const fs::path& path);

/// A file that grows line by line or record by record; each append reaches the system in one call, so
/// that a killed process leaves whole ones. Errors: CheckpointError with path and reason.
class AppendFile {
 public:
  explicit AppendFile(const fs::path& path);
  void append(std::string_view bytes);
  /// Brings file and name onto the disk. A file that somebody has deleted or replaced is written again, as it was.
  /// Returns what has happened to it, for the user; empty: nothing.
  std::string sync();
  const fs::path& path() const { return path_; }

 private:
  void open();
  std::string put_back();

  fs::path path_;
  Descriptor file_;
  int64_t size_ = 0;  // that the file must have at least
  bool is_named_ = false;
};

}  // namespace hebb
