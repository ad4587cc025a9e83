#pragma once
#include <functional>
#include <string>
#include <vector>

#include "comm/rank_group.h"
#include "train/run_folder.h"

namespace hebb {

/// `hebb train --ranks N|all --restart K`, `hebb eval --ranks N|all`.
struct RanksOptions {
  std::string ranks;  // empty: not given
  int restarts = 0;
};

/// The number of ranks of `--ranks`. Errors: ConfigError for a text that is none, and for `all` without a GPU.
int count_ranks(const std::string& text, bool uses_gpu);

/// What a launcher has told this process, whose own GPU is from here on that of its local rank.
LaunchedRank launched_rank();

/// Whether this process starts ranks and is none; then it takes no GPU (set_own_gpu). Errors: ConfigError for --ranks
/// in a process of a launcher.
bool is_parent_of_ranks(const std::string& ranks, const LaunchedRank& launched);

/// Starts the ranks as processes of this command line without --ranks and waits for their end. Returns their exit code.
/// Errors: ConfigError for more ranks than visible GPUs, CommError.
int start_ranks(int ranks, bool uses_gpu);

/// Starts the ranks of a run as processes of this command line, without the two options, and waits for their end.
/// Returns the exit code of the run. `config` must be resolved. Errors: ConfigError, CommError.
int start_ranks(const RunConfig& config, const RunOptions& run, int ranks, int restarts);

/// What a process that a launcher has started as one of several ranks tells the others. Errors: ConfigError, CommError.
RankGroupOptions rank_options(const RunConfig& config, const RunOptions& run);
/// The same without a run configuration: where ranks meet, and what they must agree on.
RankGroupOptions rank_options(const CommConfig& comm, bool uses_gpu, const fs::path& folder, const Json& agreement);

/// Calls body as one of several ranks and waits for the others: an error ends all of them, and the first to have one
/// says it. Signals to stop are noted from here on. Returns what the body returns.
int run_as_rank(RankGroup& group, const std::function<int()>& body);

/// CPU threads of a rank where the configuration leaves them open: an equal part of the cores of its host.
int threads_of_rank(const RankGroup& group);

}  // namespace hebb
