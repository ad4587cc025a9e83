#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace hebb {

/// Finds loss spikes: how far a loss lies from the mean of the last 128 finite ones (docs/training.md, When a number is
/// not finite).
class SpikeWindow {
 public:
  static constexpr size_t kSize = 128;
  static constexpr double kThreshold = 6;

  /// Adds a finite loss and returns its z-score against the full window before it, when |z| exceeds
  /// the threshold. Losses that are not finite change nothing.
  std::optional<double> add(double loss);

  std::vector<double> values() const { return {values_.begin(), values_.end()}; }
  void restore(const std::vector<double>& values) { values_.assign(values.begin(), values.end()); }

 private:
  std::deque<double> values_;
};

/// What happens to steps that cannot be applied (docs/training.md, When a number is not finite).
class SkipPolicy {
 public:
  SkipPolicy(bool stop_at_once, int64_t max_consecutive)
      : stop_at_once_(stop_at_once), max_consecutive_(max_consecutive) {}

  /// Reports step index `step` as applied or not; `reason` says why not ("the loss is nan"). Throws
  /// NumericError naming the step when training must stop; `may_stop_at_once` is false for steps that
  /// are skipped for another reason than a number that is not finite.
  void applied() { consecutive_ = 0; }
  void skipped(int64_t step, const std::string& reason, bool may_stop_at_once = true);

  int64_t total() const { return total_; }
  int64_t consecutive() const { return consecutive_; }
  void restore(int64_t total, int64_t consecutive) {
    total_ = total;
    consecutive_ = consecutive;
  }

 private:
  bool stop_at_once_;
  int64_t max_consecutive_;
  int64_t total_ = 0, consecutive_ = 0;
};

}  // namespace hebb
