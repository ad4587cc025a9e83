#pragma once
#include <optional>
#include <string>

#include "core/stop_signals.h"
#include "train/run_context.h"

namespace hebb {

/// Why a run ends before its last step: a signal, or train.max_minutes. Several ranks stop when all know that one wants
/// to.
class StopAgreement {
 public:
  explicit StopAgreement(const RunContext& run) : run_(run) {}

  /// From now on signals are noted; until then one ends the process.
  void note_signals() { signals_.emplace(); }
  /// Before the first step; after it, its record says so. Every rank calls it.
  void agree_at_start();
  /// What all ranks know by now: whether one of them wants to stop.
  void agree(bool stops);
  void count_step() { steps_ += 1; }
  /// Whether this rank wants to stop, or will after one more step.
  bool is_wanted() const { return !own_reason(steps_).empty(); }
  bool is_wanted_after_step() const { return !own_reason(steps_ + 1).empty(); }
  /// Why the run stops now; empty: it goes on.
  std::string reason() const { return run_.ranks.size() > 1 ? agreed_ : own_reason(steps_); }

 private:
  std::string own_reason(int64_t steps) const;

  const RunContext& run_;
  std::optional<StopSignals> signals_;
  int64_t steps_ = 0;   // by this process
  std::string agreed_;  // several ranks: why all of them stop
};

}  // namespace hebb
