#pragma once
#include <algorithm>
#include <chrono>

namespace hebb {

/// A clock in seconds for loops that wait for others. Of the time between two readings at most `largest_step` counts: a
/// process that was suspended, a machine that slept or a clock that jumped brings no deadline nearer.
class AwakeTime {
 public:
  explicit AwakeTime(double largest_step = 5) : largest_step_(largest_step) {}
  double now() {
    const auto read = std::chrono::steady_clock::now();
    seconds_ += std::clamp(std::chrono::duration<double>(read - last_).count(), 0.0, largest_step_);
    last_ = read;
    return seconds_;
  }

 private:
  double largest_step_, seconds_ = 0;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace hebb
