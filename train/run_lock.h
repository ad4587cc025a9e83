#pragma once
#include <string>

#include "core/files.h"

namespace hebb {

/// Holds RUN/lock, a text file "HOST PID START", for this process; removed by the destructor.
/// Errors: CheckpointError naming the process that holds it, or what keeps the file from being written.
/// A lock that a process of this host left behind is taken over; one of another host is not, since
/// nothing tells whether that process lives.
class RunLock {
 public:
  explicit RunLock(const fs::path& run_folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// What was taken over ("process 123 on host"), or empty.
  const std::string& taken_over() const { return taken_over_; }

 private:
  bool try_lock();

  fs::path path_;
  int fd_ = -1;
  std::string taken_over_;
};

}  // namespace hebb
