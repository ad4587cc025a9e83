#include "core/signal_cleanup.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace hebb {
namespace {

struct Cleanup {
  std::vector<std::string> paths;
  std::string guard;
  int guard_file = -1;

  /// Calls nothing that a handler must not call.
  bool is_guarded() const {
    struct stat named {
    }, file{};
    return guard.empty() || (::stat(guard.c_str(), &named) == 0 && ::fstat(guard_file, &file) == 0 &&
                             named.st_ino == file.st_ino && named.st_dev == file.st_dev);
  }
};

// A handler can reach globals alone. Who takes a list out of its slot owns it.
std::array<std::atomic<Cleanup*>, 16> slots{};
static_assert(std::atomic<Cleanup*>::is_always_lock_free);
std::mutex slots_mutex;  // of what follows
int in_use = 0;
constexpr std::array kEndSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGXCPU};

extern "C" void remove_and_end(int number) {
  std::array<const Cleanup*, slots.size()> taken{};
  for (size_t i = 0; i < slots.size(); ++i) {
    const Cleanup* cleanup = slots[i].exchange(nullptr);
    if (cleanup == nullptr || !cleanup->is_guarded()) { continue; }
    for (const std::string& path : cleanup->paths) { ::unlink(path.c_str()); }
    taken[i] = cleanup;
  }
  for (const Cleanup* cleanup : taken) {  // files of all lists may lie in folders of one
    if (cleanup == nullptr) { continue; }
    for (const std::string& path : cleanup->paths) { ::rmdir(path.c_str()); }
  }
  signal(number, SIG_DFL);
  raise(number);  // delivered when this handler returns
}

bool is_handler(int number, void (*handler)(int)) {
  struct sigaction now {};
  return sigaction(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == handler;
}

}  // namespace

SignalCleanup::SignalCleanup(const std::vector<fs::path>& paths, const fs::path& guard, int guard_file) {
  const std::lock_guard lock(slots_mutex);
  auto list = std::make_unique<Cleanup>();
  for (const fs::path& path : paths) { list->paths.push_back(fs::absolute(path).string()); }
  if (!guard.empty()) { list->guard = fs::absolute(guard).string(); }
  list->guard_file = guard_file;
  for (size_t i = 0; i < slots.size() && slot_ < 0; ++i) {
    Cleanup* none = nullptr;
    if (slots[i].compare_exchange_strong(none, list.get())) {
      (void)list.release();  // the slot has it
      slot_ = static_cast<int>(i);
    }
  }
  if (in_use++ > 0) { return; }
  for (const int number : kEndSignals) {
    if (!is_handler(number, SIG_DFL)) { continue; }
    struct sigaction action {};
    action.sa_handler = remove_and_end;
    sigfillset(&action.sa_mask);  // a further signal waits until all is removed
    sigaction(number, &action, nullptr);
  }
}

SignalCleanup::~SignalCleanup() {
  const std::lock_guard lock(slots_mutex);
  if (slot_ >= 0) { delete slots[static_cast<size_t>(slot_)].exchange(nullptr); }
  if (--in_use > 0) { return; }
  for (const int number : kEndSignals) {
    if (is_handler(number, remove_and_end)) { signal(number, SIG_DFL); }
  }
}

}  // namespace hebb
