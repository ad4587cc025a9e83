#pragma once
#include <string_view>

#include "core/files.h"

namespace hebb {

/// A file that grows line by line or record by record; each append reaches the system in one call, so
/// that a killed process leaves whole ones. Errors: CheckpointError with path and reason.
class AppendFile {
 public:
  explicit AppendFile(const fs::path& path);
  void append(std::string_view bytes) { write_all(file_, path_, bytes); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  Descriptor file_;
};

}  // namespace hebb
