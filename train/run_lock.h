#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/files.h"

namespace hebb {

/// How long a lock lives without its process.
struct LockTimes {
  double touch_seconds = 15;  // how often the holder touches the file
  double watch_seconds = 60;  // how long the lock of another host must not have changed to be taken over
};

/// Holds RUN/lock, a text file "HOST PID START JOB REQUEUES", for this process; removed by the destructor. A thread
/// touches it. A lock that a process of this host left behind is taken over. One of another host is watched: it is
/// taken over if nobody touches it, or if a Slurm job left it behind that has been requeued since and runs here.
/// Errors: CheckpointError naming the process that holds it, or what keeps the file from being written.
class RunLock {
 public:
  /// say: told before a lock is watched; may be empty.
  explicit RunLock(const fs::path& run_folder, const LockTimes& times = {},
                   const std::function<void(const std::string&)>& say = {});
  ~RunLock();

  /// What was taken over ("process 123 on host"), or empty.
  const std::string& taken_over() const { return taken_over_; }
  /// Errors: CheckpointError if another process has taken the lock over, or somebody has removed it. A process that was
  /// stopped, or cut off from the folder, for longer than others watch finds that when it goes on.
  void require_own() const;

 private:
  bool open_file();
  void take(const LockTimes& times, const std::function<void(const std::string&)>& say);
  void write_text();
  void touch_every(double seconds);

  fs::path path_;
  Descriptor file_;
  bool has_flock_ = false;
  std::string text_, taken_over_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace hebb
