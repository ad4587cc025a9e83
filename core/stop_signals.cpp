#include "core/stop_signals.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <mutex>

namespace hebb {
namespace {

struct StopSignal {
  int number;
  const char* name;
};
// A terminal that closes (SIGHUP), a reader of our output that ends (SIGPIPE) or a limit of CPU time (SIGXCPU) must not
// cost the steps since the last save.
constexpr std::array kSignals = {StopSignal{SIGTERM, "SIGTERM"}, StopSignal{SIGINT, "SIGINT"},
                                 StopSignal{SIGUSR1, "SIGUSR1"}, StopSignal{SIGUSR2, "SIGUSR2"},
                                 StopSignal{SIGHUP, "SIGHUP"},   StopSignal{SIGPIPE, "SIGPIPE"},
                                 StopSignal{SIGXCPU, "SIGXCPU"}};

StopRequest request;  // handlers can reach nothing else than globals, and any thread may run one
std::mutex mutex;     // of what follows
int installed = 0;
std::array<struct sigaction, kSignals.size()> previous;

extern "C" void on_signal(int number, siginfo_t* info, void*) {
  if (request.take(number, *info, steady_ns())) {
    signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  }
}

void warn_before_cpu_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY || limit.rlim_cur < limit.rlim_max) {
    return;
  }
  limit.rlim_cur = limit.rlim_max - std::min(limit.rlim_max, std::max<rlim_t>(1, limit.rlim_max / 10));
  setrlimit(RLIMIT_CPU, &limit);
}

}  // namespace

bool ends_at_once(int signal, double seconds_since_first) {
  return (signal == SIGINT || signal == SIGTERM) && seconds_since_first >= kOneStopSeconds;
}

int64_t steady_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

bool StopRequest::take(int signal, const siginfo_t& info, int64_t now) {
  int64_t first = 0;
  if (!first_at_.compare_exchange_strong(first, now)) {
    return ends_at_once(signal, static_cast<double>(now - first) * 1e-9);
  }
  const bool is_handed_on = info.si_code == SI_QUEUE && *signal_name(info.si_value.sival_int) != '\0';
  cause_ = is_handed_on ? info.si_value.sival_int : signal;
  return false;
}

void StopRequest::reset() {
  cause_ = 0;
  first_at_ = 0;
}

void send_stop(pid_t process, int cause) {
  sigval value{};
  value.sival_int = cause;
  sigqueue(process, SIGUSR1, value);
}

const char* signal_name(int signal) {
  const auto it =
      std::find_if(kSignals.begin(), kSignals.end(), [&](const StopSignal& s) { return s.number == signal; });
  return it != kSignals.end() ? it->name : "";
}

StopSignals::StopSignals() {
  const std::lock_guard lock(mutex);
  if (installed++ > 0) { return; }
  request.reset();
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;  // calls in progress go on: only the note matters
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i].number, &action, &previous[i]);
    const bool is_nohup = kSignals[i].number == SIGHUP && previous[i].sa_handler == SIG_IGN;
    if (is_nohup) { sigaction(SIGHUP, &previous[i], nullptr); }
  }
  warn_before_cpu_limit();
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(mutex);
  if (--installed > 0) { return; }
  for (size_t i = 0; i < kSignals.size(); ++i) { sigaction(kSignals[i].number, &previous[i], nullptr); }
}

int StopSignals::cause() const { return request.cause(); }

}  // namespace hebb
