#pragma once
#include <memory>

#include "core/folder_lock.h"

namespace hebb {

/// A file that this process alone writes: holds .NAME.lock beside it, and removes what processes that were killed have
/// left of it (NAME.tmp-PID). A signal that ends the process removes lock and temporary file.
/// Errors: CheckpointError that names the process that writes it, or for a folder that does not exist.
class OutputLock {
 public:
  explicit OutputLock(const fs::path& file);
  const fs::path& temporary() const { return temporary_; }

 private:
  fs::path temporary_;
  FolderLock lock_;
  std::unique_ptr<SignalCleanup> cleanup_;
};

}  // namespace hebb
