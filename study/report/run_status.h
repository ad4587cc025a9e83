#pragma once
#include <cstdint>
#include <string>

#include "core/files.h"

namespace hebb {

/// RUN/status.json of a run of a ladder (docs/verbs/ladder.md).
struct RunStatus {
  std::string state = "pending";                         // pending, running, done, failed
  std::string config_hash, host, started, ended, error;  // times in UTC, ISO 8601
  double seconds = 0;                                    // of all starts, evaluations included
  int64_t step = 0, pid = 0;
  std::string task;  // NUMBER.PLACE of a submission (study/ladder/submission.h), where a job trains the run
  int64_t idle = 0;  // stops of jobs in a row without a new logged step
};
/// `pending` where there is no file. Errors: CheckpointError for a damaged one.
RunStatus read_status(const fs::path& run);
void write_status(const fs::path& run, const RunStatus& status);
/// Whether a run is said to be running by a process of this host that is no more: it was killed with the ladder.
bool was_killed(const RunStatus& status);

}  // namespace hebb
