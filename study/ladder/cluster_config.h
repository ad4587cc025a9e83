#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"

namespace hebb {

inline constexpr int64_t kMostRanks = 65536;

/// What the job of a run asks a cluster for: `cluster` of a sweep (docs/clusters.md).
struct ClusterConfig {
  std::string partition, account, qos, time, memory;  // as Slurm writes them; empty: the cluster's own
  int64_t ranks = 1;
  std::optional<int64_t> nodes, cpus, gpus;  // cpus and gpus of each rank
  int64_t stop_seconds = 300;                // before the time limit a run saves and stops
  std::string setup;                         // shell lines before hebb starts
  std::string start;                         // words before hebb that start the ranks; empty: srun, or hebb itself
  std::vector<std::string> options;          // further words for sbatch
};

void fields(Fields& f, ClusterConfig& c);

/// `cluster` with the values of KEY=VALUE words over it.
/// Errors: ConfigError for a key or value that is none.
ClusterConfig read_cluster(const Json& cluster, const std::vector<std::string>& overrides);

/// The lines of `setup` for a script of sh or bash, which ends where a command of them fails; "" without a setup.
std::string setup_lines(const ClusterConfig& cluster);

}  // namespace hebb
