#pragma once
#include <string_view>

#include "core/files.h"

namespace hebb {

/// A file that grows line by line or record by record; each append reaches the system in one call, so
/// that a killed process leaves whole ones. Errors: CheckpointError with path and reason.
class AppendFile {
 public:
  explicit AppendFile(const fs::path& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  void append(std::string_view bytes);
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int fd_ = -1;
};

}  // namespace hebb
