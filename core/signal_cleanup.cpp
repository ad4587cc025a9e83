#include "core/signal_cleanup.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace hebb {
namespace {

using Paths = std::vector<std::string>;

// A handler can reach globals alone. Who takes a list out of its slot owns it.
std::array<std::atomic<Paths*>, 16> slots{};
static_assert(std::atomic<Paths*>::is_always_lock_free);
std::mutex mutex;  // of what follows
int in_use = 0;
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

extern "C" void remove_and_end(int number) {
  for (std::atomic<Paths*>& slot : slots) {
    const Paths* paths = slot.exchange(nullptr);
    if (paths == nullptr) { continue; }
    for (const std::string& path : *paths) {
      if (::unlink(path.c_str()) != 0) { ::rmdir(path.c_str()); }
    }
  }
  signal(number, SIG_DFL);
  raise(number);  // delivered when this handler returns
}

bool is_handler(int number, void (*handler)(int)) {
  struct sigaction now {};
  return sigaction(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == handler;
}

}  // namespace

SignalCleanup::SignalCleanup(const std::vector<fs::path>& paths) {
  const std::lock_guard lock(mutex);
  auto list = std::make_unique<Paths>();
  for (const fs::path& path : paths) { list->push_back(fs::absolute(path).string()); }
  for (size_t i = 0; i < slots.size() && slot_ < 0; ++i) {
    Paths* none = nullptr;
    if (slots[i].compare_exchange_strong(none, list.get())) {
      list.release();
      slot_ = static_cast<int>(i);
    }
  }
  if (in_use++ > 0) { return; }
  for (const int number : kSignals) {
    if (is_handler(number, SIG_DFL)) { signal(number, remove_and_end); }
  }
}

SignalCleanup::~SignalCleanup() {
  const std::lock_guard lock(mutex);
  if (slot_ >= 0) { delete slots[static_cast<size_t>(slot_)].exchange(nullptr); }
  if (--in_use > 0) { return; }
  for (const int number : kSignals) {
    if (is_handler(number, remove_and_end)) { signal(number, SIG_DFL); }
  }
}

}  // namespace hebb
