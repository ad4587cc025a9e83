#pragma once
#include <vector>

#include "train/lane_memories.h"

namespace hebb {

/// Watches the state that layers carry from batch to batch (fast weights, thresholds).
class FiniteCheck {
 public:
  /// memories: those of all own lanes, or null where the store has them.
  FiniteCheck(const ParamStore& params, const LaneMemories* memories, Arena& arena);
  /// Enqueues the check of a step; afterwards copy result() to the host, then ask check().
  void enqueue(Stream& stream) const;
  /// Nothing where no state is carried.
  std::vector<HostCopy> result();
  /// Throws NumericError naming step and tensor when a value is not finite (docs/training.md, When a number is not
  /// finite).
  void check(int64_t completed_steps) const;

 private:
  struct Carried {
    const Param* param;
    Tensor values;
  };
  std::vector<Carried> carried_;
  Buffer partial_;
  std::vector<double> sums_;  // partial_ on the host
};

}  // namespace hebb
