#pragma once
#include <map>
#include <string>

#include "study/ladder/ladder.h"
#include "study/ladder/submission.h"

namespace hebb {

/// The jobs of the runs of a ladder (docs/clusters.md).
struct LadderJobs {
  struct Active {
    bool is_running;  // else it waits
    std::string job, reason;
  };
  struct Ended {
    std::string job, how;  // "FAILED, exit code 1" where Slurm knows
    fs::path log;          // of the job
  };
  std::map<std::string, Active> active;  // by run: jobs that wait or run
  std::map<std::string, Ended> lost;     // by run: jobs that have gone without having said how their runs ended
  std::string problem;                   // why Slurm's queue cannot be read; then its jobs are in neither
};
/// Asks Slurm's queue only where a run that was handed to it has not ended. Jobs of other launchers are known by what
/// they wrote.
LadderJobs read_jobs(const fs::path& ladder);

/// Errors: CheckpointError where jobs train runs of this ladder, or may do so.
void require_no_jobs(const fs::path& ladder);

/// Hands what is left of a sweep, and in no queue, to `options.launcher`, and returns. Results of the runs that are
/// done are written, and the report once all are. Returns 0. Errors: those of run_ladder; ConfigError for what the
/// launcher refuses.
int launch_ladder(const Sweep& sweep, const LadderOptions& options, const Console& console);

/// The commands that launch_ladder would run for all runs of the sweep, one a line.
std::string describe_jobs(const Sweep& sweep, const LadderOptions& options);

/// Ends the jobs of a ladder: they save first, and start no more. Returns what was done.
/// Errors: Error with what scancel said.
std::string cancel_jobs(const fs::path& ladder);

}  // namespace hebb
