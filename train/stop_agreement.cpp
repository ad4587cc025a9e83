#include "train/stop_agreement.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/elapsed.h"

namespace hebb {

void StopAgreement::agree_at_start() {
  if (run_.ranks.size() == 1) { return; }
  const uint64_t own = is_wanted() ? 1 : 0;
  const std::vector<uint64_t> all = run_.host.gather({&own, 1});
  agree(std::find(all.begin(), all.end(), 1) != all.end());
}

void StopAgreement::agree(bool stops) { agreed_ = agreed_ || stops; }

std::string StopAgreement::reason() const {
  if (run_.ranks.size() == 1) { return own_reason(steps_); }
  const std::vector<std::string> reasons = run_.host.gather_texts(own_reason(1));
  if (const std::string& own = reasons[static_cast<size_t>(run_.ranks.rank())]; !own.empty()) { return own; }
  const auto first = std::find_if(reasons.begin(), reasons.end(), [](const std::string& r) { return !r.empty(); });
  return first == reasons.end() ? "" : fmt::format("{} (rank {:d})", *first, first - reasons.begin());
}

/// Of this rank, after so many steps. Time is that of the first.
std::string StopAgreement::own_reason(int64_t steps) const {
  if (const std::string signal = signals_ ? signals_->received() : ""; !signal.empty()) { return signal; }
  // At least one step, so that a limit shorter than the start-up cannot hold a run in place.
  const double limit = run_.config.train.max_minutes;
  const bool is_over = limit > 0 && run_.ranks.is_first() && steps > 0 && seconds_since(run_.started) >= 60 * limit;
  return is_over ? "train.max_minutes = " + Json(limit).dump() : "";
}

}  // namespace hebb
