#include "train/run_lock.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "core/host.h"

namespace hebb {
namespace {

struct Holder {
  std::string host;
  pid_t pid = 0;
  std::string start;  // of the process, in clock ticks since boot: tells a reused pid

  std::string text() const { return fmt::format("{} {:d} {}\n", host, pid, start); }
};

std::string start_of(pid_t pid) {
  try {
    // Field 22. The second field is a name in parentheses that may hold anything; the third is the state: a zombie has
    // ended, though nobody has asked for its exit code.
    const std::string stat = read_file(fmt::format("/proc/{:d}/stat", pid));
    std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
    std::string field;
    for (int i = 3; i <= 22; ++i) {
      fields >> field;
      if (i == 3 && (field == "Z" || field == "X")) { return "ended"; }
    }
    return field.empty() ? "0" : field;
  } catch (const Error&) { return "0"; }
}

Holder this_process() { return {host_name(), ::getpid(), start_of(::getpid())}; }

Holder read_holder(int fd) {
  char text[512] = {};
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  std::istringstream in(std::string(text, static_cast<size_t>(n > 0 ? n : 0)));
  Holder holder;
  in >> holder.host >> holder.pid >> holder.start;
  return holder;
}

bool is_alive(const Holder& holder) {
  const bool exists = ::kill(holder.pid, 0) == 0 || errno == EPERM;
  return exists && start_of(holder.pid) == holder.start;
}

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw CheckpointError(path.string(), std::string(what) + ": " + std::strerror(errno));
}

[[noreturn]] void fail_in_use(const fs::path& path, const Holder& holder, const char* hint) {
  throw CheckpointError(path.parent_path().string(),
                        fmt::format("the run folder is in use by process {:d} on {}{}", holder.pid,
                                    holder.host.empty() ? "an unknown host" : holder.host, hint));
}

}  // namespace

bool RunLock::try_lock() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) { fail(path_, "cannot create the lock"); }
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    const Holder holder = read_holder(fd_);
    ::close(fd_);
    fail_in_use(path_, holder, "");
  }
  // File systems without flock fall back to what the file says.
  struct stat ours {
  }, named{};
  const bool is_current = ::fstat(fd_, &ours) == 0 && ::stat(path_.c_str(), &named) == 0 && ours.st_ino == named.st_ino;
  if (!is_current) {
    ::close(fd_);  // its holder removed it between open and flock
  }
  return is_current;
}

RunLock::RunLock(const fs::path& run_folder) : path_(run_folder / "lock") {
  while (!try_lock()) {}
  const Holder self = this_process(), holder = read_holder(fd_);
  if (holder.pid > 0) {
    const bool is_here = holder.host == self.host;
    if (!is_here || (holder.pid != self.pid && is_alive(holder))) {
      ::close(fd_);
      fail_in_use(path_, holder,
                  is_here ? "" : ", which cannot be asked from here; remove the file lock if that process has ended");
    }
    taken_over_ = fmt::format("process {:d} on {}", holder.pid, holder.host);
  }
  const std::string text = self.text();
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    ::close(fd_);
    errno = error;
    fail(path_, "cannot write the lock");
  }
}

RunLock::~RunLock() {
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace hebb
