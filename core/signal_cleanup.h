#pragma once

#include "core/files.h"

namespace hebb {

/// While one of these exists and a signal that asks for an end (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE,
/// SIGXCPU) ends the process, its paths go: files, and folders that are empty by then, in their order. With `guard`
/// they go only while that path leads to the open file `guard_file`. A signal that is handled otherwise, or ignored,
/// stays so. More than 16 at a time have no effect.
class SignalCleanup {
 public:
  explicit SignalCleanup(const std::vector<fs::path>& paths, const fs::path& guard = {}, int guard_file = -1);
  ~SignalCleanup();
  SignalCleanup(const SignalCleanup&) = delete;
  SignalCleanup& operator=(const SignalCleanup&) = delete;

 private:
  int slot_ = -1;
};

}  // namespace hebb
