#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/signal_cleanup.h"

namespace hebb {

/// A folder beside `target` that takes its name when commit() is called, and goes otherwise.
class NewFolder {
 public:
  explicit NewFolder(fs::path target);
  ~NewFolder();
  const fs::path& path() const { return path_; }
  /// The path of a file to write in it; a signal that ends the process takes it away.
  fs::path add(const std::string& name);
  void commit();

 private:
  fs::path target_, path_;
  std::vector<fs::path> files_;
  std::unique_ptr<SignalCleanup> cleanup_;
};

}  // namespace hebb
