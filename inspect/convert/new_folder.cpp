#include "inspect/convert/new_folder.h"

#include <fmt/core.h>
#include <unistd.h>

#include <utility>

#include "core/error.h"
#include "core/retry.h"

namespace hebb {

NewFolder::NewFolder(fs::path target)
    : target_(fs::absolute(std::move(target)).lexically_normal()),
      path_(target_.parent_path() / fmt::format(".tmp-{}-{}", ::getpid(), target_.filename().string())) {
  std::error_code error;
  if (fs::exists(target_) && !(fs::is_directory(target_) && fs::is_empty(target_, error))) {
    throw CheckpointError(target_.string(), "exists and is not an empty folder; a conversion overwrites nothing");
  }
  retried(error, [&] { fs::create_directories(path_, error); });
  if (error) { throw CheckpointError(path_.string(), "cannot make the folder: " + error.message()); }
  cleanup_ = std::make_unique<SignalCleanup>(std::vector<fs::path>{path_});
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path NewFolder::add(const std::string& name) {
  files_.push_back(path_ / name);
  std::vector<fs::path> all = files_;
  all.push_back(path_);
  cleanup_ = std::make_unique<SignalCleanup>(all);
  return files_.back();
}

void NewFolder::commit() {
  std::error_code error;
  fs::remove(target_, error);  // empty
  retried(error, [&] { fs::rename(path_, target_, error); });
  if (error) { throw CheckpointError(target_.string(), "cannot rename the finished folder to it: " + error.message()); }
  fsync_directory(target_.parent_path());
}

}  // namespace hebb
