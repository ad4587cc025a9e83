#pragma once
#include <string>
#include <vector>

#include "inspect/plan.h"
#include "study/ladder/sweep.h"
#include "study/report/run_status.h"
#include "train/run_log.h"

namespace hebb {

/// Removes what a killed ladder or job had begun to write in the folder of a run. For who holds the run.
void remove_begun(const fs::path& run);

struct LadderOptions {
  fs::path folder;                   // empty: runs/NAME in the current folder
  std::string program;               // the hebb binary, which trains each run in a process of its own
  int64_t parallel = 0;              // 0: the sweep's max_parallel; jobs: no limit
  int64_t ranks = 0;                 // of each run; 0: what the sweep says
  bool force = false;                // runs whose configuration changed start anew; the old folder is kept as ID.HASH
  bool skips_unfit = false;          // runs that need more memory than there is are left out
  std::string launcher;              // "slurm" or a command template; empty: processes of this machine
  std::vector<std::string> cluster;  // KEY=VALUE, over what the sweep says of the cluster
};

/// Trains what is left of a sweep: skips runs that are done, resumes interrupted and failed ones from their last
/// checkpoints. After each run results.jsonl and results.csv are written, at the end the report. SIGTERM and SIGINT
/// stop the runs after a save. The console's bar shows how far the whole is. Returns the exit code: 0, 1 when a run
/// failed, 75 when stopped. Errors, before any run starts: ConfigError (a run changed, and not `force`),
/// MemoryError (runs that do not fit, and not `skips_unfit`), DataError (no run has its data), CheckpointError (a
/// folder of something else, or in use, or whose runs a launcher's jobs train).
int run_ladder(const Sweep& sweep, const LadderOptions& options, const Console& console);

/// The plans of a sweep's runs, each for the ranks that train it, without their data. Errors: ConfigError.
std::vector<Plan> plan_runs(const Sweep& sweep, const LadderOptions& ladder, const PlanOptions& options);

/// Seconds until the last of the runs ends that start in their order, so many at a time.
double schedule_seconds(const std::vector<double>& run_seconds, int64_t at_a_time);

/// What the sweep would cost: one line per run, the sum, and the runs that cannot start, here or with a launcher by
/// their data alone. plan: the GPU and the speed (of each rank), which adds the time.
/// columns: of the table at most; 0: any.
std::string describe_ladder(const Sweep& sweep, const LadderOptions& options, const PlanOptions& plan = {},
                            int columns = 0);

/// State, progress and time left of the runs in a ladder's folder.
/// Errors: CheckpointError for a folder that holds no ladder.
std::string ladder_status(const fs::path& folder);

/// The runs that LADDER/sweep.json lists, for reports.
struct LadderRun {
  std::string id;
  Json tags;
  int64_t steps = 0;
  double flops = 0;
};
struct LadderFolder {
  std::string name;
  std::vector<LadderRun> runs;
  std::vector<Json> planned;  // planned_result() of the runs that are not trained
  std::optional<FitConfig> fit;
  std::optional<PublishedTable> published;
  std::optional<ShrinkFactors> shrink;  // nothing: the sweep has its sizes
};
bool is_ladder(const fs::path& folder);
LadderFolder read_ladder(const fs::path& folder);
/// The report of a ladder's finished runs, in its folder or in `out`.
fs::path write_ladder_report(const fs::path& ladder, const fs::path& out = {});

}  // namespace hebb
