#include "core/folder_lock.h"

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

#include "core/append_file.h"
#include "core/elapsed.h"
#include "core/folders.h"
#include "core/host.h"
#include "core/retry.h"
#include "core/sign_of_life.h"

namespace hebb {
namespace {

constexpr int kAttempts = 1000;  // to open the file in a folder that others create and remove
constexpr double kSecondsToWrite = 10;

struct Holder {
  std::string host;
  pid_t pid = 0;
  std::string start;     // of the process, in clock ticks since boot: tells a reused pid
  std::string job;       // Slurm's job, "-" without one
  int64_t requeued = 0;  // how often that job has been requeued

  std::string text() const { return fmt::format("{} {:d} {} {} {:d}\n", host, pid, start, job, requeued); }
  std::string process() const {
    return fmt::format("process {:d} on {}", pid, host.empty() ? "an unknown host" : host);
  }
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
  const Descriptor file(retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  return file.is_open() ? read_holder(file.fd()) : Holder{};
}

/// Slurm ends what a job began before it requeues the job.
bool is_requeued(const Holder& before, const Holder& now) {
  return now.job != "-" && before.job == now.job && before.requeued < now.requeued;
}

bool is_alive(const Holder& holder) {
  const bool exists = ::kill(holder.pid, 0) == 0 || errno == EPERM;
  return exists && start_of(holder.pid) == holder.start;
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
  while (!first.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(duration_of(std::min(1.0, seconds / 20)));
    sign_of_life();
    const std::string now = stamp_of(path);
    if (now != first) { return !now.empty(); }
  }
  return false;
}

}  // namespace

void FolderLock::fail(const fs::path& where, const std::string& what) const {
  if (options_.code == ExitCode::kCheckpoint) { throw CheckpointError(where.string(), what); }
  if (options_.code == ExitCode::kData) { throw DataError(where.string(), what); }
  throw Error(options_.code, located(where.string(), what));
}

/// By whom the file at the path says. A holder writes that a moment after it has the lock.
void FolderLock::fail_in_use(const std::string& hint) const {
  const auto begin = std::chrono::steady_clock::now();
  Holder holder = holder_of(path_);
  while (holder.pid <= 0 && fs::exists(path_) && seconds_since(begin) < kSecondsToWrite) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    holder = holder_of(path_);
  }
  fail(path_.parent_path(), fmt::format("the {} is in use by {}{}", options_.name,
                                        holder.pid > 0      ? holder.process()
                                        : fs::exists(path_) ? "a process that does not write its lock"
                                                            : "a process that has ended meanwhile",
                                        hint));
}

/// False if the file is to be opened again: its holder, or who created the folder, has removed it meanwhile.
bool FolderLock::open_file() {
  file_ = Descriptor(retried([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); }));
  if (!file_.is_open() && (errno == ENOENT || errno == ENOTDIR) && ++attempts_ < kAttempts) {
    try {
      const fs::path missing = create_folders(path_.parent_path());
      if (created_.empty()) { created_ = missing; }
    } catch (const CheckpointError& error) { fail("", error.what()); }
    return false;
  }
  if (!file_.is_open()) { fail(path_, std::string("cannot create the lock: ") + std::strerror(errno)); }
  // File systems without flock fall back to what the file says.
  has_flock_ = retried([&] { return ::flock(file_.fd(), LOCK_EX | LOCK_NB); }) == 0 || errno != EWOULDBLOCK;
  return is_at(path_, file_);
}

FolderLock::FolderLock(const fs::path& folder, LockOptions options, const std::function<void(const std::string&)>& say)
    : path_(fs::absolute(folder) / options.file), options_(std::move(options)) {
  while (!open_file()) {}
  take(say);
  write_text();
  thread_ = std::thread([this] { touch_every(options_.touch_seconds); });
}

void FolderLock::take(const std::function<void(const std::string&)>& say) {
  const Holder self = this_process(), holder = read_holder(file_.fd());
  text_ = self.text();
  if (holder.host.empty() || holder.host == self.host) {
    const bool is_other = holder.pid > 0 && holder.pid != self.pid;
    if (!has_flock_ || (is_other && is_alive(holder))) { fail_in_use(""); }
    if (holder.pid > 0) { taken_over_ = holder.process(); }
    return;
  }
  taken_over_ = holder.process();
  if (!is_requeued(holder, self)) {
    if (say) {
      say(fmt::format("the {} was in use by {}: its lock is taken over if it does not change for {:g} s", options_.name,
                      taken_over_, options_.watch_seconds));
    }
    if (is_touched(path_, options_.watch_seconds)) { fail_in_use(", which touches the lock"); }
  }
  if (!is_at(path_, file_)) {  // removed by its holder, or taken over by another start that watched
    taken_over_.clear();
    while (!open_file()) {}
    return take(say);
  }
  // A new file: what the other process may still write goes to the old one.
  retried([&] { return ::unlink(path_.c_str()); });
  while (!open_file()) {}
  if (!has_flock_ || read_holder(file_.fd()).pid > 0) { fail_in_use(""); }
}

void FolderLock::write_text() {
  ssize_t n = 0;
  for (size_t done = 0; n >= 0 && done < text_.size(); done += static_cast<size_t>(n)) {
    n = retried(
        [&] { return ::pwrite(file_.fd(), text_.data() + done, text_.size() - done, static_cast<off_t>(done)); });
    if (n < 0) { break; }
  }
  if (n < 0 || retried([&] { return ::ftruncate(file_.fd(), static_cast<off_t>(text_.size())); }) != 0) {
    const int error = errno;
    if (is_at(path_, file_)) {  // no destructor runs
      retried([&] { return ::unlink(path_.c_str()); });
    }
    fail(path_, std::string("cannot write the lock: ") + std::strerror(error));
  }
  retried([&] { return ::fsync(file_.fd()); });  // for hosts that watch; where it fails, saving says so
}

void FolderLock::touch_every(double seconds) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the main thread's
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_over_; })) {
    // The same bytes: every file system notes when a file was written.
    if (::pwrite(file_.fd(), text_.data(), text_.size(), 0) > 0) { ::fsync(file_.fd()); }
    try {
      renew();
    } catch (const Error&) {}  // require_own() says so
  }
}

/// Makes a file that somebody has removed or emptied again.
void FolderLock::renew() {
  const Holder holder = holder_of(path_);
  if (holder.text() == text_) { return; }
  if (holder.pid > 0) {
    fail(path_, fmt::format("{} has taken the {} over; nothing is saved (end that process before this one is started "
                            "again)",
                            holder.process(), options_.name));
  }
  if (!is_at(path_, file_)) {
    try {
      create_folders(path_.parent_path());
    } catch (const CheckpointError& error) { fail("", error.what()); }
    Descriptor file(retried([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
    const bool is_taken =
        file.is_open() ? retried([&] { return ::flock(file.fd(), LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK
                       : errno == EEXIST;
    if (is_taken) { fail_in_use("; this one has lost its lock, and nothing is saved"); }
    if (!file.is_open()) {
      fail(path_,
           std::string("the lock is gone and cannot be written again; nothing is saved: ") + std::strerror(errno));
    }
    file_ = std::move(file);
  }
  write_text();
  is_renewed_ = true;
}

bool FolderLock::is_own() const { return holder_of(path_).text() == text_; }

bool FolderLock::require_own() {
  const std::lock_guard lock(mutex_);
  renew();
  return std::exchange(is_renewed_, false);
}

std::unique_ptr<SignalCleanup> FolderLock::remove_at_signals(const std::vector<fs::path>& paths) const {
  return std::make_unique<SignalCleanup>(paths, path_, file_.fd());
}

FolderLock::~FolderLock() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (is_at(path_, file_)) {
    retried([&] { return ::unlink(path_.c_str()); });
  }
}

}  // namespace hebb
