#pragma once
#include <optional>
#include <string>
#include <vector>

#include "train/memory_plan.h"

namespace hebb {

/// Bandwidth of a rank to ranks of its host and of others, in bytes per second.
struct LinkSpeed {
  double in = 0, out = 0;
};
/// "nvlink", "pcie:eth100", "330:42" (GB/s). Errors: ConfigError naming the presets.
LinkSpeed read_link(const std::string& text);

struct RankPlanOptions {
  int ranks = 1, ranks_per_host = 0;  // 0: all on one host
  LinkSpeed link{};
  std::optional<double> tokens_per_s{};  // of one device
  std::optional<double> tflops{};        // the same in FLOPs of training [TFLOP/s]
};

/// A run with W ranks and lanes L, which all rows of a table share.
struct RankPlanRow {
  int ranks = 1, hosts = 1;
  int zero = 0;                                // train.zero
  int64_t micro_batches = 0;                   // of a rank and step
  int64_t reduce_bytes = 0, gather_bytes = 0;  // sent by a rank and step, on average over ranks
  MemoryPlan memory;                           // of rank 0, as its run reserves it
  // Where the speed of one device is known:
  double step_seconds = 0, exposed_seconds = 0, efficiency = 0;
};

/// What data parallel costs, predicted by the formulas of docs/design/data-parallel.md, Prediction.
struct RankPlan {
  int lanes = 1;
  std::vector<int> allowed;  // numbers of ranks with the same bits
  int64_t buckets = 0;
  bool is_timed = false;
  int64_t steps = 0;              // of the run
  std::vector<RankPlanRow> rows;  // every allowed number up to the one asked for, ascending

  Json json() const;
  std::string text(int columns = 0) const;  // the table, of at most so many columns; 0: any
};

/// config: resolved, with the micro-batch of one rank; train.lanes are those of the plan, by default as many as ranks.
/// Errors: ConfigError for ranks that do not divide the batch, that the lanes do not allow, or no multiple of
/// ranks_per_host, and for layers that cannot be trained so.
RankPlan plan_ranks(RunConfig config, const RankPlanOptions& options);

}  // namespace hebb
