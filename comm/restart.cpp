#include "comm/restart.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace hebb {

std::optional<double> RestartPolicy::next(const RunEnd& end) {
  const bool is_fault =
      end.code == static_cast<int>(ExitCode::kOther) || end.code == static_cast<int>(ExitCode::kComm) || end.code > 128;
  const bool is_hopeless = is_first_ && !end.did_step;
  is_first_ = false;
  if (end.has_new_checkpoint) { in_a_row_ = 0; }
  if (!is_fault || end.was_asked || is_hopeless || in_a_row_ >= most_) { return std::nullopt; }
  return std::min(60.0, 5 * std::pow(2.0, in_a_row_++));
}

}  // namespace hebb
