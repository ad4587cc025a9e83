#include "optim/step_policy.h"

#include <fmt/core.h>

#include <cmath>

#include "core/error.h"

namespace hebb {

std::optional<double> SpikeWindow::add(double loss) {
  if (!std::isfinite(loss)) { return std::nullopt; }
  std::optional<double> spike;
  if (values_.size() == kSize) {
    double sum = 0, squares = 0;
    for (const double v : values_) { sum += v; }
    const double mean = sum / kSize;
    for (const double v : values_) { squares += (v - mean) * (v - mean); }
    const double z = (loss - mean) / std::sqrt(squares / kSize);
    if (std::isfinite(z) && std::abs(z) > kThreshold) { spike = z; }
    values_.pop_front();
  }
  values_.push_back(loss);
  return spike;
}

void SkipPolicy::skipped(int64_t step, const std::string& reason, bool may_stop_at_once) {
  ++total_;
  ++consecutive_;
  const std::string where = fmt::format("step {:d}", step + 1);
  if (stop_at_once_ && may_stop_at_once) { throw NumericError(where, reason + " (train.nonfinite is \"stop\")"); }
  if (consecutive_ > max_consecutive_) {
    throw NumericError(where, fmt::format("{} (found {:d} skipped steps in a row, expected at most "
                                          "train.max_consecutive_skips = {:d}); the last checkpoint stays",
                                          reason, consecutive_, max_consecutive_));
  }
}

}  // namespace hebb
