#include "tools/output_lock.h"

#include <fmt/core.h>

#include <unistd.h>

#include <system_error>

#include "core/files.h"
#include "core/retry.h"

namespace hebb {
namespace {

std::string lock_name(const fs::path& file) { return "." + file.filename().string() + ".lock"; }

/// A lock creates its folder: that of the file must be there, it is rather misspelt.
fs::path existing_folder(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw CheckpointError(file.string(), "cannot create: " + folder.string() + " is no folder");
  }
  return folder;
}

/// What killed processes have left; the lock is held.
void remove_temporaries(const fs::path& file) {
  const std::string begin = file.filename().string() + ".tmp-";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(existing_folder(file), error)) {
    const std::string name = entry.path().filename().string();
    const bool is_left = name.starts_with(begin) && name.find_first_not_of("0123456789", begin.size()) == name.npos;
    if (is_left) { fs::remove(entry.path(), error); }
  }
}

}  // namespace

OutputLock::OutputLock(const fs::path& file)
    : file_(file),
      temporary_(fmt::format("{}.tmp-{:d}", file.string(), ::getpid())),
      lock_(existing_folder(file), {.name = "file " + file.filename().string(), .file = lock_name(file)}),
      cleanup_(lock_.remove_at_signals({temporary_, existing_folder(file) / lock_name(file)})) {
  remove_temporaries(file);
}

OutputLock::~OutputLock() {
  std::error_code ignored;
  fs::remove(temporary_, ignored);
}

void OutputLock::publish() const {
  std::error_code error;
  retried(error, [&] { fs::rename(temporary_, file_, error); });
  if (error) { throw CheckpointError(file_.string(), "cannot rename the finished file: " + error.message()); }
  fsync_directory(file_.has_parent_path() ? file_.parent_path() : fs::path("."));
}

}  // namespace hebb
