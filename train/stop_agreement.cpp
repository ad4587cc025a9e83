#include "train/stop_agreement.h"

#include <algorithm>

#include "core/elapsed.h"

namespace hebb {

void StopAgreement::agree_at_start() {
  if (run_.ranks.size() == 1) { return; }
  const uint64_t own = is_wanted() ? 1 : 0;
  const std::vector<uint64_t> all = run_.host.gather({&own, 1});
  agree(std::find(all.begin(), all.end(), 1) != all.end());
}

void StopAgreement::agree(bool stops) {
  if (!stops || run_.ranks.size() == 1) { return; }
  const std::string own = own_reason(1);
  agreed_ = own.empty() ? "a signal to another rank" : own;
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
