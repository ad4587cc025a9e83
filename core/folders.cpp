#include "core/folders.h"

#include "core/retry.h"

namespace hebb {

fs::path create_folders(const fs::path& path) {
  constexpr int kAttempts = 100;
  std::vector<fs::path> missing;  // from the inside to the outside
  std::error_code error;          // creating it says what is wrong
  for (fs::path folder = path; !folder.empty() && !fs::exists(folder, error); folder = folder.parent_path()) {
    missing.push_back(folder);
  }
  if (missing.empty()) { return {}; }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    retried(error, [&] { fs::create_directories(path, error); });
    if (error != std::errc::no_such_file_or_directory) { break; }  // another process has removed one on the way
  }
  if (error) { throw CheckpointError(path.string(), "cannot create the folder: " + error.message()); }
  for (const fs::path& folder : missing) {
    const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    if (fs::exists(parent, error)) { fsync_directory(parent); }
  }
  return missing.back();
}

}  // namespace hebb
