#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/json.h"

namespace hebb {

/// One collective of one size among the ranks at hand.
struct CommSpeed {
  std::string name;                   // "all-to-all", "ordered reduction", "all-gather", "MPI_Reduce_scatter"
  int64_t bytes = 0;                  // of the whole on each rank
  double best_ms = 0, median_ms = 0;  // of the rank that took longest
  double sent_bytes = 0;              // by a rank

  double gb_per_s() const { return sent_bytes / median_ms * 1e-6; }
};

/// A sum of f32 over ranks whose part `rank` each keeps: [ranks, n] -> [n].
using ReduceScatter = std::function<void(float* to, const float* from, int64_t n)>;

struct CommBench {
  std::vector<int64_t> sizes;      // bytes, each rounded up to what buckets are multiples of
  double seconds = 0.3;            // of each collective and size, at least 5 times
  ReduceScatter reduce_scatter{};  // of the MPI, to compare with; none: left out
};

/// Measures all-to-all, the ordered reduction of fp32 gradients, all-gather and, right beside the reduction, that of
/// MPI: in turn, so that all meet the same load. Every rank calls it; all get the same numbers. On the CPU.
std::vector<CommSpeed> measure_comm(Communicator& communicator, const CommBench& bench);

Json to_json(const std::vector<CommSpeed>& speeds);
/// A table, and what `hebb plan --link` takes.
std::string describe(const std::vector<CommSpeed>& speeds, int ranks, const std::string& engine);

}  // namespace hebb
