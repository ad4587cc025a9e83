#include "train/run_lock.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/elapsed.h"
#include "core/host.h"

namespace hebb {
namespace {

struct Holder {
  std::string host;
  pid_t pid = 0;
  std::string start;     // of the process, in clock ticks since boot: tells a reused pid
  std::string job;       // Slurm's job, "-" without one
  int64_t requeued = 0;  // how often that job has been requeued

  std::string text() const { return fmt::format("{} {:d} {} {} {:d}\n", host, pid, start, job, requeued); }
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

Holder this_process() {
  const char *job = std::getenv("SLURM_JOB_ID"), *requeued = std::getenv("SLURM_RESTART_COUNT");
  const bool has_job = job != nullptr && *job != '\0';
  return {.host = host_name(),
          .pid = ::getpid(),
          .start = start_of(::getpid()),
          .job = has_job ? job : "-",
          .requeued = has_job && requeued != nullptr ? std::atoll(requeued) : 0};
}

Holder read_holder(int fd) {
  char text[512] = {};
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  std::istringstream in(std::string(text, static_cast<size_t>(n > 0 ? n : 0)));
  Holder holder;
  in >> holder.host >> holder.pid >> holder.start >> holder.job >> holder.requeued;
  return holder;
}

/// Nobody without a file. It is opened each time: clients of network file systems ask the server then.
Holder holder_of(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.is_open() ? read_holder(file.fd()) : Holder{};
}

/// Slurm ends what a job began before it requeues the job.
bool is_requeued(const Holder& before, const Holder& now) {
  return now.job != "-" && before.job == now.job && before.requeued < now.requeued;
}

/// Whether the path still names this file.
bool is_at(const fs::path& path, const Descriptor& file) {
  struct stat ours {
  }, named{};
  return ::fstat(file.fd(), &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_ino == named.st_ino;
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

/// What changes when a lock is touched, removed or taken; empty without a file.
std::string stamp_of(const fs::path& path) {
  const std::string holder = holder_of(path).text();  // opens the file: then clients of NFS ask for its times, too
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) { return ""; }
  return fmt::format("{} {} {} {}", found.st_ino, found.st_mtim.tv_sec, found.st_mtim.tv_nsec, holder);
}

/// Whether a lock is touched, or is another's, within so many seconds. A lock that is removed meanwhile is not.
bool is_touched(const fs::path& path, double seconds) {
  const auto end = std::chrono::steady_clock::now() + duration_of(seconds);
  const std::string first = stamp_of(path);
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(duration_of(std::min(1.0, seconds / 20)));
    const std::string now = stamp_of(path);
    if (now != first) { return !now.empty(); }
  }
  return false;
}

}  // namespace

/// False if the holder removed the file between open and flock.
bool RunLock::open_file() {
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.is_open()) { fail(path_, "cannot create the lock"); }
  // File systems without flock fall back to what the file says.
  has_flock_ = ::flock(file_.fd(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  return is_at(path_, file_);
}

RunLock::RunLock(const fs::path& run_folder, const LockTimes& times, const std::function<void(const std::string&)>& say)
    : path_(run_folder / "lock") {
  while (!open_file()) {}
  take(times, say);
  write_text();
  thread_ = std::thread([this, seconds = times.touch_seconds] { touch_every(seconds); });
}

void RunLock::take(const LockTimes& times, const std::function<void(const std::string&)>& say) {
  const Holder self = this_process(), holder = read_holder(file_.fd());
  text_ = self.text();
  if (holder.host.empty() || holder.host == self.host) {
    const bool is_other = holder.pid > 0 && holder.pid != self.pid;
    if (!has_flock_ || (is_other && is_alive(holder))) { fail_in_use(path_, holder, ""); }
    if (holder.pid > 0) { taken_over_ = fmt::format("process {:d} on {}", holder.pid, holder.host); }
    return;
  }
  taken_over_ = fmt::format("process {:d} on {}", holder.pid, holder.host);
  if (!is_requeued(holder, self)) {
    if (say) {
      say(fmt::format("the run folder was in use by {}: its lock is taken over if it does not change for {:g} s",
                      taken_over_, times.watch_seconds));
    }
    if (is_touched(path_, times.watch_seconds)) { fail_in_use(path_, holder_of(path_), ", which touches the lock"); }
  }
  // A new file: what the other process may still write goes to the old one.
  ::unlink(path_.c_str());
  while (!open_file()) {}
  if (const Holder first = read_holder(file_.fd()); !has_flock_ || first.pid > 0) { fail_in_use(path_, first, ""); }
}

void RunLock::write_text() {
  const ssize_t size = static_cast<ssize_t>(text_.size());
  if (::ftruncate(file_.fd(), 0) != 0 || ::pwrite(file_.fd(), text_.data(), text_.size(), 0) != size) {
    fail(path_, "cannot write the lock");
  }
  ::fsync(file_.fd());  // for hosts that watch; where it fails, saving says so
}

void RunLock::touch_every(double seconds) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the main thread's
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_over_; })) {
    // The same bytes: every file system notes when a file was written.
    if (::pwrite(file_.fd(), text_.data(), text_.size(), 0) > 0) { ::fsync(file_.fd()); }
  }
}

void RunLock::require_own() const {
  const Holder holder = holder_of(path_);
  if (holder.pid > 0 && holder.text() == text_) { return; }
  throw CheckpointError(
      path_.string(), holder.pid > 0 ? fmt::format("process {:d} on {} has taken the run folder over; nothing is saved",
                                                   holder.pid, holder.host)
                                     : "the lock of this process is gone; nothing is saved");
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (is_at(path_, file_)) { ::unlink(path_.c_str()); }
}

}  // namespace hebb
