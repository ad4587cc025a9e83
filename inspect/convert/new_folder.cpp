#include "inspect/convert/new_folder.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/retry.h"

namespace hebb {

namespace {

/// Without a slash at its end.
fs::path normal(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

std::string lock_name(const fs::path& target) { return "." + target.filename().string() + ".lock"; }

}  // namespace

NewFolder::NewFolder(const fs::path& target)
    : target_(normal(target)),
      path_(target_.parent_path() / fmt::format(".tmp-{}-{}", ::getpid(), target_.filename().string())) {
  require_free();
  const LockOptions options{.name = "folder " + target_.filename().string(), .file = lock_name(target_)};
  lock_ = std::make_unique<FolderLock>(target_.parent_path(), options);
  require_free();  // another process may have finished meanwhile
  remove_left();
  std::error_code error;
  retried(error, [&] { fs::create_directories(path_, error); });
  if (error) { throw CheckpointError(path_.string(), "cannot make the folder: " + error.message()); }
  clean_up_at_signals();
}

void NewFolder::require_free() const {
  std::error_code error;
  if (fs::exists(target_) && !(fs::is_directory(target_) && fs::is_empty(target_, error))) {
    throw CheckpointError(target_.string(), "exists and is not an empty folder; a conversion overwrites nothing");
  }
}

/// Of killed processes; the lock is held.
void NewFolder::remove_left() const {
  const std::string begin = ".tmp-", end = "-" + target_.filename().string();
  std::vector<fs::path> left;
  std::error_code ignored;  // what cannot be removed is in nobody's way
  for (const auto& entry : fs::directory_iterator(target_.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    const size_t digits = name.find_first_not_of("0123456789", begin.size());
    if (name.starts_with(begin) && digits != begin.size() && name.substr(std::min(digits, name.size())) == end) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& path : left) { fs::remove_all(path, ignored); }
}

void NewFolder::clean_up_at_signals() {
  std::vector<fs::path> all = files_;
  all.push_back(path_);
  all.push_back(target_.parent_path() / lock_name(target_));
  cleanup_ = lock_->remove_at_signals(all);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path NewFolder::add(const std::string& name) {
  files_.push_back(path_ / name);
  clean_up_at_signals();
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
