#include "core/append_file.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/folders.h"
#include "core/retry.h"

namespace hebb {
namespace {

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw CheckpointError(path.string(), std::string(what) + ": " + std::strerror(errno));
}

int64_t size_of(const Descriptor& file, const fs::path& path) {
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0) { fail(path, "cannot read the size"); }
  return info.st_size;
}

}  // namespace

bool is_at(const fs::path& path, const Descriptor& file) {
  struct stat ours {
  }, named{};
  return ::fstat(file.fd(), &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

std::string set_aside(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) { return path.string() + " was deleted"; }
  fs::path aside = path.string() + ".replaced";
  for (int i = 2; fs::exists(fs::symlink_status(aside, error)); ++i) {
    aside = fmt::format("{}.replaced{:d}", path.string(), i);
  }
  retried(error, [&] { fs::rename(path, aside, error); });
  if (error) {
    throw CheckpointError(path.string(), "was replaced, and what lies there cannot be renamed: " + error.message());
  }
  return path.string() + " was replaced; what lay there is " + aside.filename().string();
}

AppendFile::AppendFile(const fs::path& path) : path_(path) { open(); }

void AppendFile::open() {
  file_ = Descriptor(retried([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666); }));
  if (!file_.is_open()) { fail(path_, "cannot open"); }
  size_ = size_of(file_, path_);
}

void AppendFile::append(std::string_view bytes) {
  write_all(file_, path_, bytes);
  size_ += static_cast<int64_t>(bytes.size());
}

std::string AppendFile::put_back() {
  std::string bytes(static_cast<size_t>(size_of(file_, path_)), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = retried(
        [&] { return ::pread(file_.fd(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done)); });
    if (n < 0) { fail(path_, "cannot read"); }
    if (n == 0) { break; }
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  const std::string what = set_aside(path_);
  create_folders(path_.parent_path());
  write_file_atomic(path_, bytes);
  open();
  return what + "; the file is written again";
}

std::string AppendFile::sync() {
  std::string what;
  if (!is_at(path_, file_)) {
    what = put_back();
  } else if (const int64_t size = size_of(file_, path_); size < size_) {
    what = fmt::format("{} was cut: found {:d} bytes, expected {:d}", path_.string(), size, size_);
    size_ = size;
  }
  const int status = retried([&] { return ::fsync(file_.fd()); });
  // Pipes, devices and some network file systems cannot sync.
  if (status != 0 && errno != EINVAL && errno != ENOTSUP) { fail(path_, "cannot flush to disk"); }
  if (!is_named_) { fsync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path(".")); }
  is_named_ = true;
  return what;
}

}  // namespace hebb
