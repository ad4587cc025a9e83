#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/folder_lock.h"

namespace hebb {

/// A folder beside `target` that takes its name when commit() is called, and goes otherwise. This process alone writes
/// it: it holds .NAME.lock beside it, and removes what processes that were killed have left of it (.tmp-PID-NAME).
/// Errors: CheckpointError for a target that is there and not empty, or that names the process that writes it.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& target);
  ~NewFolder();
  const fs::path& path() const { return path_; }
  /// The path of a file to write in it; a signal that ends the process takes it away.
  fs::path add(const std::string& name);
  void commit();

 private:
  void require_free() const;
  void remove_left() const;
  void clean_up_at_signals();

  fs::path target_, path_;
  std::vector<fs::path> files_;
  std::unique_ptr<FolderLock> lock_;
  std::unique_ptr<SignalCleanup> cleanup_;
};

}  // namespace hebb
