#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace hebb {

/// A clock in seconds for loops that wait for others. Of the time between two readings at most `largest_step` counts: a
/// process that was suspended, a machine that slept or a clock that jumped brings no deadline nearer.
class AwakeTime {
 public:
  /// read: seconds from any beginning; empty: std::chrono::steady_clock.
  explicit AwakeTime(double largest_step = 5, std::function<double()> read = {})
      : largest_step_(largest_step), read_(read ? std::move(read) : steady_seconds), last_(read_()) {}
  double now() {
    const double read = read_();
    seconds_ += std::clamp(read - last_, 0.0, largest_step_);
    last_ = read;
    return seconds_;
  }

 private:
  static double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  double largest_step_, seconds_ = 0;
  std::function<double()> read_;
  double last_;
};

}  // namespace hebb
