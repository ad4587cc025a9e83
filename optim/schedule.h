#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/fields.h"

namespace hebb {

/// The `schedule` section of a run configuration (docs/training.md, Schedules).
struct ScheduleConfig {
  std::string type = "constant";
  int64_t warmup_steps = 0;
  double min_lr = 0;
  // wsd only:
  std::string decay = "linear";
  std::optional<int64_t> decay_steps;  // replaces decay_fraction
  double decay_fraction = 0.2;

  /// Length of the decay of `wsd` in a run of `steps` steps.
  int64_t resolved_decay_steps(int64_t steps) const;
};
void fields(Fields& f, ScheduleConfig& config);

/// Learning rate by step index, in double. `steps` is the length of the run; `wsd` needs
/// warmup_steps + decay steps <= steps (the run configuration checks it).
/// Source: docs/training.md, Schedules.
class Schedule {
 public:
  Schedule(const ScheduleConfig& config, double peak, int64_t steps);
  double operator()(int64_t step) const;
  double peak() const { return peak_; }

 private:
  double decayed(double q) const;

  ScheduleConfig config_;
  double peak_;
  int64_t steps_, decay_steps_;
};

}  // namespace hebb
