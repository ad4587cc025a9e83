#pragma once
#include <array>
#include <vector>

#include "comm/host_exchange.h"
#include "core/json.h"

namespace hebb {

/// A step of one rank: its time, and how much of that it was in collectives.
struct StepTime {
  double seconds = 0, comm_seconds = 0;
};

/// What one rank knows about the steps since the last logged one.
struct RankTimes {
  int64_t peak_bytes = 0;  // memory
  int64_t sent_bytes = 0;  // to other ranks, in all these steps
  std::vector<StepTime> steps;
};

/// Those of all ranks. Every rank calls it, with equally many steps.
std::vector<RankTimes> gather_times(HostExchange& ranks, const RankTimes& own);

/// What communication costs a step, as metrics.jsonl has it (docs/formats/metrics.md). Means over steps.
struct CommTimes {
  int ranks = 1;
  int64_t peak_bytes = 0;  // memory of the rank that has most
  int64_t sent_bytes = 0;  // by the rank that sends most, in a step
  bool is_timed = false;   // the rest is known
  double exposed_ms = 0;   // in collectives, without waiting: that of the rank that is there shortest in each step
  std::array<double, 3> wait_ms{};  // for other ranks: least, mean, greatest
  int slowest = 0;                  // the rank with the most time outside of collectives
  double skew = 1;                  // that time by the median

  Json json() const;
};
/// of: one entry a rank, each with the same number of steps, at least one. is_timed: collectives end when they return,
/// as on the CPU.
CommTimes compare_times(const std::vector<RankTimes>& of, bool is_timed);

/// Whether one rank holds up the others for long.
class SkewWatch {
 public:
  static constexpr int kLines = 20;
  static constexpr double kSkew = 1.2;

  /// Of a logged step. True once: after kLines in a row with a skew above kSkew and the same slowest rank.
  bool add(const CommTimes& times);

 private:
  int lines_ = 0, slowest_ = -1;
  bool has_warned_ = false;
};

}  // namespace hebb
