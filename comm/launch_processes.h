#pragma once
#include <sys/types.h>

#include <vector>

namespace hebb {

/// Returns once that process has ended, whether or not somebody has asked for its exit code.
void wait_for_end(pid_t pid);

/// Processes that have the variable HEBB_LAUNCHER with that process as its value: what it has started, and what those
/// have. only_ranks: without mpirun.
std::vector<pid_t> launched_processes(pid_t launcher, bool only_ranks);

}  // namespace hebb
