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
  /// Whether the run stops now.
  bool stops() const { return run_.ranks.size() > 1 ? agreed_ : is_wanted(); }
  /// Why it does: the reason of this rank, or of the first rank that has one, since a launcher may have handed a signal
  /// to some ranks only. Every rank calls it, with nothing under way.
  std::string reason() const;

 private:
  std::string own_reason(int64_t steps) const;

  const RunContext& run_;
  std::optional<StopSignals> signals_;
  int64_t steps_ = 0;    // by this process
  bool agreed_ = false;  // several ranks: one wants to stop, and all know it
};

}  // namespace hebb
