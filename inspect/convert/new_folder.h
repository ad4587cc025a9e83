#pragma once
#include <memory>

#include "core/files.h"
#include "core/signal_cleanup.h"

namespace hebb {

/// A folder beside `target` that takes its name when commit() is called, and goes otherwise.
class NewFolder {
 public:
  explicit NewFolder(fs::path target);
  ~NewFolder();
  const fs::path& path() const { return path_; }
  void commit();

 private:
  fs::path target_, path_;
  std::unique_ptr<SignalCleanup> cleanup_;
};

}  // namespace hebb
