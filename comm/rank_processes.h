#pragma once
#include <string>
#include <vector>

#include "core/files.h"

namespace hebb {

/// What `hebb train CONFIG --ranks N` starts.
struct RankProcessesOptions {
  std::string program;                       // path
  std::vector<std::string> arguments;        // of each rank
  std::vector<std::string> arguments_again;  // after a restart
  int ranks = 1;
  bool uses_gpu = false;       // processes with one GPU each, else one mpirun
  int restarts = 0;            // RestartPolicy
  double start_seconds = 300;  // for mpirun to start the first rank
  double grace_seconds = 35;   // for the others, once a rank has ended with an error
  fs::path run_folder;         // empty: nothing is known of steps and checkpoints
};

/// Starts ranks on this host, forwards signals to stop to them (a later SIGINT or SIGTERM ends them), passes on what
/// they write to stderr, and says the first error last. Restarts a run that a fault has ended. No process that it
/// started outlives it. Holds no device. Returns the exit code of the run: that of its cause, 14 for ranks that were
/// killed. One at a time in a process. Errors: CommError where mpirun cannot be started, or the build has no MPI.
int run_rank_processes(const RankProcessesOptions& options);

}  // namespace hebb
