#pragma once
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace hebb {

/// Schedulers send a signal to all processes of a job, and the launcher among them hands it on; people press Ctrl-C
/// twice. Signals to stop that come within so many seconds of the first ask for one stop.
inline constexpr double kOneStopSeconds = 2;

/// Whether a signal ends at once what was asked to stop so many seconds ago: SIGINT and SIGTERM do, a while after the
/// first signal.
bool ends_at_once(int signal, double seconds_since_first);

/// What signals ask for.
class StopRequest {
 public:
  /// Whether the signal ends_at_once(). A handler with SA_SIGINFO may call it. now: steady_ns().
  bool take(int signal, const siginfo_t& info, int64_t now);
  /// The first signal, or what the process that sent it was stopped by (send_stop()); 0 before.
  int cause() const { return cause_; }
  void reset();

 private:
  std::atomic<int> cause_{0};
  std::atomic<int64_t> first_at_{0};  // [ns]
  static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);
};

/// Time that only grows, for handlers [ns].
int64_t steady_ns();

/// Asks a process that uses StopRequest to stop, by SIGUSR1, which ends none. cause: the signal that it is handed on
/// for; 0 for none.
void send_stop(pid_t process, int cause);

/// "SIGTERM"; empty for what is none of StopSignals.
const char* signal_name(int signal);

/// While one of these exists, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP (unless it was ignored, as by nohup), SIGPIPE
/// and SIGXCPU are only noted; one that ends_at_once() does so (docs/verbs/train.md, Stopping). All that exist at a
/// time note the same. The kernel kills a process at a limit of CPU time that is soft and hard, as `ulimit -t` sets
/// it: the soft limit is set a tenth below, so that SIGXCPU comes first.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Number of the signal that asked to stop; 0 before.
  int cause() const;
  /// Its name; empty before.
  std::string received() const { return signal_name(cause()); }
};

}  // namespace hebb
