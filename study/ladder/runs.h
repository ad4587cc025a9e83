#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/folder_lock.h"
#include "study/ladder/ladder.h"
#include "train/run_config.h"

namespace hebb {

inline constexpr const char* kLadderConfig = "ladder-config.json";  // of a run, as given to hebb train
inline constexpr const char* kRunConsole = "console.log";           // what hebb train and hebb eval print

/// This moment in UTC, ISO 8601.
std::string time_now();
/// Why a process failed: the last line of its output `log` that starts with "error: ", or how it ended.
std::string failure_reason(const fs::path& log, int code);

/// Writes the status of a run that process `pid` has begun.
void note_start(const fs::path& run, RunStatus& status, pid_t pid);
/// Writes the status of a run that has come to the end of a start, begun at `begun`; state, step and error are set.
/// Returns a line for people.
std::string note_end(const fs::path& run, const std::string& id, RunStatus& status,
                     std::chrono::steady_clock::time_point begun);
/// Removes RUN/lock where a process of another machine has it, which is known to have ended.
void remove_lock_of_other_host(const fs::path& run);

/// Processes that train a run together, here or as a job. Errors: ConfigError for what jobs cannot ask for.
int ranks_of(const SweepRun& run, const Sweep& sweep, const LadderOptions& options);
/// The configuration of a run as hebb train resolves it for so many ranks, on any machine. folder: where the run goes
/// on; empty: it begins. Errors: ConfigError where it was written, with the id of the run.
RunConfig resolved_run(const SweepRun& run, int ranks, const fs::path& folder = {});

/// Resolves runs of a sweep, each with its ranks and the folder where it goes on.
/// Errors: ConfigError with a line for each that cannot be resolved.
void require_resolved(const Sweep& sweep, const LadderOptions& options, const std::vector<size_t>& runs,
                      const std::function<fs::path(size_t)>& folder_of);

/// What a run needs of this machine.
struct RunNeeds {
  std::string run, problem;          // "RUN: reason" where it cannot start
  bool is_memory = false;            // that is the problem
  int64_t bytes = 0, available = 0;  // of memory; 0 where nobody asked
};
struct NeedsAsked {
  bool memory = false, data = true;
  fs::path folder = {};  // where the run goes on; empty: it begins
};
/// Reads the run's data for so many ranks, and compares its memory with what this machine has.
RunNeeds needs_of(const SweepRun& run, int ranks, const NeedsAsked& asked);
/// "2 of 5 runs cannot start; ..." with the first of the problems.
std::string cannot_start(const std::vector<RunNeeds>& problems, size_t runs);

/// The runs of a sweep in the folder of its ladder.
class LadderRuns {
 public:
  /// `line` must outlive the object.
  LadderRuns(const Sweep& sweep, const LadderOptions& options, const std::function<void(std::string_view)>& line);

  const fs::path& folder() const { return folder_; }
  fs::path run_folder(size_t i) const { return folder_ / sweep_.runs[i].id; }
  /// Makes the folder and takes its lock. Errors: CheckpointError for one of something else, or in use.
  void open();
  /// Reads all states, and writes what a shrunken sweep needs before its runs are looked at. Errors: ConfigError for a
  /// run whose configuration is not the one that its folder was made with, unless changed runs start anew, and for one
  /// that is left and cannot be resolved.
  void read();
  bool is_changed(size_t i) const;
  /// Runs that are not done, or changed.
  std::vector<size_t> unfinished() const;
  /// Errors, before anything starts: MemoryError where some of `runs` need more than this machine has, for their
  /// numbers of ranks; `skips_unfit` takes them out of `runs` as long as others are left. Then as warn_of_data().
  void require_memory(std::vector<size_t>& runs, const std::function<int(size_t)>& ranks_of) const;
  /// Opens the data of the runs. DataError where none can start, a warning where some cannot.
  void warn_of_data(const std::vector<size_t>& runs, const std::function<int(size_t)>& ranks_of) const;
  /// sweep.json, and a folder with the configuration and the state `pending` for each of `runs`. The folders of changed
  /// runs are set aside. Waits for processes that an earlier ladder left behind, which save and end by themselves.
  void prepare(const std::vector<size_t>& runs);
  /// results.jsonl and results.csv of the runs that are done.
  void write_results() const;

  std::vector<RunStatus> status;  // by run

 private:
  void warn_of_problems(const std::vector<RunNeeds>& problems, size_t runs) const;
  /// Warns where runs at the same time may need more memory than there is.
  void warn_of_memory(std::vector<RunNeeds> runs) const;
  /// The table of what was shrunk, and the corpus.
  void prepare_shrunken(const ShrunkTo& shrunk) const;
  std::string differences(size_t i) const;
  void set_aside(size_t i);
  void prepare_run(size_t i);

  const Sweep& sweep_;
  const LadderOptions& options_;
  const std::function<void(std::string_view)>& line_;
  fs::path folder_;
  std::optional<FolderLock> lock_;
  std::vector<size_t> changed_;
};

}  // namespace hebb
