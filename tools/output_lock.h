#pragma once
#include <memory>

#include "core/folder_lock.h"

namespace hebb {

/// A file that this process alone writes: holds .NAME.lock beside it, and removes what processes that were killed have
/// left of it (NAME.tmp-PID). Lock and temporary file go with it, and with a signal that ends the process.
/// Errors: CheckpointError that names the process that writes it, or for a folder that does not exist.
class OutputLock {
 public:
  explicit OutputLock(const fs::path& file);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;
  const fs::path& temporary() const { return temporary_; }
  /// Gives the temporary file, which is written and synced, its name. Errors: CheckpointError.
  void publish() const;

 private:
  fs::path file_, temporary_;
  FolderLock lock_;
  std::unique_ptr<SignalCleanup> cleanup_;
};

}  // namespace hebb
