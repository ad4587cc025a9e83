#include "train/signals.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>

namespace hebb {
namespace {

struct StopSignal {
  int number;
  const char* name;
};
// A terminal that closes (SIGHUP) or a reader of our output that ends (SIGPIPE) must not cost the steps since the last
// save.
constexpr std::array kSignals = {StopSignal{SIGTERM, "SIGTERM"}, StopSignal{SIGINT, "SIGINT"},
                                 StopSignal{SIGUSR1, "SIGUSR1"}, StopSignal{SIGUSR2, "SIGUSR2"},
                                 StopSignal{SIGHUP, "SIGHUP"},   StopSignal{SIGPIPE, "SIGPIPE"}};

// Handlers can reach nothing else than globals. Any thread may run one.
std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::mutex mutex;  // of what follows
int installed = 0;
std::array<struct sigaction, kSignals.size()> previous;

extern "C" void on_signal(int number) {
  if (received_signal != 0 && (number == SIGINT || number == SIGTERM)) {
    signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
    return;
  }
  received_signal = number;
}

}  // namespace

StopSignals::StopSignals() {
  const std::lock_guard lock(mutex);
  if (installed++ > 0) { return; }
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // calls in progress go on: only the flag matters
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i].number, &action, &previous[i]);
    const bool is_nohup = kSignals[i].number == SIGHUP && previous[i].sa_handler == SIG_IGN;
    if (is_nohup) { sigaction(SIGHUP, &previous[i], nullptr); }
  }
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(mutex);
  if (--installed > 0) { return; }
  for (size_t i = 0; i < kSignals.size(); ++i) { sigaction(kSignals[i].number, &previous[i], nullptr); }
}

std::string StopSignals::received() const {
  for (const StopSignal& s : kSignals) {
    if (s.number == received_signal) { return s.name; }
  }
  return "";
}

}  // namespace hebb
