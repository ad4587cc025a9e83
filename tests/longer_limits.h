#pragma once
#include <functional>

namespace hebb::testing {

/// Whether something comes within a limit that expires: `attempt` is called with longer and longer limits, up to some
/// minutes, until it says so. For tests of what happens at the end of a limit, on a machine that may be busy.
inline bool comes_within(double seconds, const std::function<bool(double limit)>& attempt) {
  for (; seconds < 600; seconds *= 4) {
    if (attempt(seconds)) { return true; }
  }
  return false;
}

}  // namespace hebb::testing
