#pragma once
#include <optional>

namespace hebb {

/// How a run with several ranks ended.
struct RunEnd {
  int code = 0;            // 128+n: signal n
  bool was_asked = false;  // by a signal to the launcher
  bool did_step = false;   // any, since this start
  bool has_new_checkpoint = false;
};

/// When `hebb train --ranks N --restart K` starts again: after exit 1, 14 or death by a signal that nobody asked for,
/// if the first start did a step, and at most K times in a row without a new checkpoint.
class RestartPolicy {
 public:
  explicit RestartPolicy(int most) : most_(most) {}
  /// Seconds to wait before the next start: 5, 10, 20, 40, then 60; nothing: no further start.
  std::optional<double> next(const RunEnd& end);

 private:
  int most_, in_a_row_ = 0;
  bool is_first_ = true;
};

}  // namespace hebb
