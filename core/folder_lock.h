#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/files.h"
#include "core/signal_cleanup.h"

namespace hebb {

struct LockOptions {
  std::string name = "run folder";        // what messages call what is locked
  ExitCode code = ExitCode::kCheckpoint;  // of errors
  double touch_seconds = 15;              // how often the holder touches the file
  double watch_seconds = 60;              // how long the lock of another host must not have changed to be taken over
  std::string file = "lock";              // its name in the folder
};

/// Holds FOLDER/lock, a text file "HOST PID START JOB REQUEUES", for this process; removed by the destructor. A thread
/// touches it. A lock that a process of this host left behind is taken over. One of another host is watched: it is
/// taken over if nobody touches it, or if a Slurm job left it behind that has been requeued since and runs here.
/// Errors, of the class of the options' code: the process that holds it, or what keeps the file from being written.
class FolderLock {
 public:
  /// Creates the folder where it is missing. say: told before a lock is watched; may be empty.
  explicit FolderLock(const fs::path& folder, LockOptions options = {},
                      const std::function<void(const std::string&)>& say = {});
  ~FolderLock();

  /// What was taken over ("process 123 on host"), or empty.
  const std::string& taken_over() const { return taken_over_; }
  /// The outermost folder that was created; empty where the folder was there.
  const fs::path& created() const { return created_; }
  /// Whether the file is this process's. A process that was stopped, or cut off from the folder, for longer than others
  /// watch finds that it is not when it goes on.
  bool is_own() const;
  /// A file that somebody has removed is taken anew where no other process has it. Returns whether that happened since
  /// the last call, also by the thread. Errors: another process has the lock, or it cannot be written.
  bool require_own();
  /// Removes these files, and folders that are empty by then, when a signal ends the process while the lock is its own.
  std::unique_ptr<SignalCleanup> remove_at_signals(const std::vector<fs::path>& paths) const;

 private:
  bool open_file();
  void take(const std::function<void(const std::string&)>& say);
  void write_text();
  void touch_every(double seconds);
  void renew();
  [[noreturn]] void fail(const fs::path& where, const std::string& what) const;
  [[noreturn]] void fail_in_use(const std::string& hint) const;

  fs::path path_;
  LockOptions options_;
  Descriptor file_;
  bool has_flock_ = false;
  int attempts_ = 0;
  fs::path created_;
  std::string text_, taken_over_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false, is_renewed_ = false;
  std::thread thread_;
};

}  // namespace hebb
