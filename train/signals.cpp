#include "train/signals.h"

#include <signal.h>

#include <array>

#include "core/error.h"

namespace hebb {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};

// Handlers can reach nothing else than globals.
volatile sig_atomic_t received_signal = 0;
bool is_installed = false;
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
  HEBB_ASSERT(!is_installed);
  is_installed = true;
  received_signal = 0;
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // calls in progress go on: only the flag matters
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &previous[i]);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &previous[i], nullptr);
  }
  is_installed = false;
}

std::string StopSignals::received() const {
  switch (received_signal) {
    case 0: return "";
    case SIGTERM: return "SIGTERM";
    case SIGINT: return "SIGINT";
    case SIGUSR1: return "SIGUSR1";
    default: return "SIGUSR2";
  }
}

}  // namespace hebb
