#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "study/ladder/ladder.h"

namespace hebb {

/// How far the whole of a ladder is, by training FLOPs.
struct LadderShare {
  int64_t done = 0, running = 0, queued = 0, failed = 0, runs = 0;
  double flops = 0, total_flops = 0;  // of done runs all, of others what their logged steps took
  double lost_flops = 0;              // what failed runs leave undone
};
/// `states` and `steps` (the last logged ones) by run.
LadderShare ladder_share(const LadderFolder& ladder, const std::vector<RunStatus>& states,
                         const std::vector<int64_t>& steps);
/// "3 of 8 runs done, 2 running, 1 queued, 1 failed"
std::string runs_text(const LadderShare& share);

/// The bar of a ladder that trains: FLOPs done of the total, time left at the rate so far, runs done.
class LadderProgress {
 public:
  /// `folder` has its sweep.json. Without a bar nothing happens.
  LadderProgress(const fs::path& folder, Progress* bar) : folder_(folder), bar_(bar) {}
  void begin(const std::vector<RunStatus>& states);
  /// May be called often: looks at the runs once a second.
  void update(const std::vector<RunStatus>& states);
  /// The same at once.
  void show(const std::vector<RunStatus>& states);
  void end(const std::vector<RunStatus>& states);

 private:
  fs::path folder_;
  Progress* bar_;
  LadderFolder ladder_;
  double before_ = 0;  // FLOPs done when it began
  std::chrono::steady_clock::time_point looked_;
};

}  // namespace hebb
