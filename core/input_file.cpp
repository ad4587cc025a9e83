#include "core/input_file.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "core/elapsed.h"
#include "core/retry.h"

namespace hebb {
namespace {

std::string reason(const char* what) { return fmt::format("{}: {}", what, std::generic_category().message(errno)); }

/// /dev/zero, /dev/urandom and the like, which may never end.
bool is_endless(int fd, const struct stat& info) {
  const bool is_null = major(info.st_rdev) == 1 && minor(info.st_rdev) == 3;
  return S_ISCHR(info.st_mode) && !is_null && ::isatty(fd) == 0;
}

}  // namespace

InputFile::InputFile(const fs::path& path, double wait_seconds)
    : file_(retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })),
      wait_seconds_(wait_seconds) {
  struct stat info {};
  if (!file_.is_open() || ::fstat(file_.fd(), &info) != 0) {
    is_missing_ = errno == ENOENT;
    problem_ = reason("cannot open");
  } else if (is_endless(file_.fd(), info)) {
    problem_ = "found a device, expected a file or a pipe";
  }
  is_pipe_ = S_ISFIFO(info.st_mode);
  size_ = S_ISREG(info.st_mode) ? static_cast<size_t>(info.st_size) : 0;
}

ssize_t InputFile::read(char* out, size_t size) {
  const auto begin = std::chrono::steady_clock::now();
  while (problem_.empty()) {
    const ssize_t got = retried([&] { return ::read(file_.fd(), out, size); });
    const bool has_nothing_yet = got < 0 && errno == EAGAIN;
    has_writer_ = has_writer_ || got > 0 || has_nothing_yet;
    pollfd waited{file_.fd(), POLLIN, 0};
    if (has_nothing_yet) {
      ::poll(&waited, 1, -1);
    } else if (got < 0) {
      problem_ = reason("cannot read");
    } else if (got > 0 || !is_pipe_ || has_writer_) {
      return got;
    } else if (seconds_since(begin) > wait_seconds_) {
      problem_ = fmt::format("nobody has opened the pipe for writing within {:g} s", wait_seconds_);
    } else {
      ::poll(&waited, 1, 20);
      has_writer_ = (waited.revents & POLLHUP) != 0;  // one came and has gone
    }
  }
  return -1;
}

}  // namespace hebb
