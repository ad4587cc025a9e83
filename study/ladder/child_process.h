#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/files.h"
#include "core/stop_signals.h"

namespace hebb {

/// A child with a process group of its own, so that a terminal's Ctrl-C reaches it only through us. When this process
/// dies it gets SIGUSR1, as by stop(): it saves, although it may have been asked to stop before.
class ChildProcess {
 public:
  /// Starts `program` with `arguments`; output and errors are appended to `log`.
  /// Errors: CheckpointError when the log cannot be opened or no process be made.
  ChildProcess(const std::string& program, const std::vector<std::string>& arguments, const fs::path& log);
  ~ChildProcess();  // kills and waits for a child that is still running
  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }

  pid_t pid() const { return pid_; }
  /// Asks for a stop with a save (core/stop_signals.h). cause: the signal that this process got; 0 for none.
  void stop(int cause) const { send_stop(pid_, cause); }
  /// Exit code, or 128 + signal, once the child has ended.
  std::optional<int> poll();

 private:
  pid_t pid_ = 0;
};

}  // namespace hebb
