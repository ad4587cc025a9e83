#pragma once
#include <string>

namespace hebb {

/// While one of these exists, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP (unless it was ignored, as by nohup) and
/// SIGPIPE only set a flag; a further SIGINT or SIGTERM ends the process at once (docs/verbs/train.md, Stopping). All
/// that exist at a time have the same flag.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// "SIGTERM" once it arrived; empty before.
  std::string received() const;
};

}  // namespace hebb
