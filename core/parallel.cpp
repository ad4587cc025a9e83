#include "core/parallel.h"

#include <fmt/core.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/machine_limits.h"

namespace hebb {
namespace {

using Body = std::function<void(int64_t, int64_t)>;

// True on workers, and on a caller while it runs bodies: an inner loop then runs inline.
thread_local bool t_in_loop = false;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Longer than the gap between two loops of a training step, short against a time slice.
constexpr std::chrono::microseconds kSpin{50};

template <class Done> bool spin_until(Done done) {
  const auto limit = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) { return true; }
      relax();
    }
  } while (std::chrono::steady_clock::now() < limit);
  return false;
}

/// One loop at a time on `threads - 1` workers and the caller.
///
/// A loop is open while ticket_ holds its number. A worker enters (entered_ + 1), and only then
/// reads the ticket; the caller closes the ticket, and only then reads entered_. These operations
/// have one total order: either the worker sees the loop closed, or the caller waits for it. So a
/// worker that wakes late costs the caller nothing and never sees a dead body.
/// Sleeping uses the same pattern: announce the sleep, then check once more.
class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    workers_.reserve(static_cast<size_t>(threads - 1));
    for (int i = 1; i < threads; ++i) {
      try {
        workers_.emplace_back([this] { work(); });
      } catch (const std::system_error& error) {
        end_workers();
        throw ConfigError("threads", std::to_string(threads),
                          fmt::format("a number that the system can start (the limit was met at {:d}: {})", i,
                                      error.code().message()));
      }
    }
  }

  ~Pool() { end_workers(); }

  /// False when another thread's loop occupies the workers.
  bool run(int64_t n, int64_t grain, const Body& body) {
    std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy.owns_lock()) { return false; }
    const int64_t grains = (n + grain - 1) / grain;
    // Several grains at once where there are many, so that handing out stays cheap.
    unit_ = grain * std::max<int64_t>(1, grains / (int64_t{16} * threads_));
    n_ = n;
    units_ = (n + unit_ - 1) / unit_;
    body_ = &body;
    error_ = nullptr;
    next_.store(0, std::memory_order_relaxed);
    ticket_.store(++loops_);
    if (sleepers_.load() > 0) {
      { std::lock_guard lock(sleep_mutex_); }
      wake_.notify_all();
    }
    t_in_loop = true;
    take_units();
    t_in_loop = false;
    ticket_.store(0);
    wait_for_workers();
    if (error_) { std::rethrow_exception(std::exchange(error_, nullptr)); }
    return true;
  }

 private:
  void end_workers() {
    {
      std::lock_guard lock(sleep_mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& w : workers_) { w.join(); }
  }

  void take_units() {
    for (;;) {
      const int64_t unit = next_.fetch_add(1, std::memory_order_relaxed);
      if (unit >= units_) { return; }
      const int64_t begin = unit * unit_;
      try {
        (*body_)(begin, std::min(n_, begin + unit_));
      } catch (...) {
        // Units are handed out in order, so the lowest failing one always runs: keeping its error
        // makes the result independent of timing.
        std::lock_guard lock(error_mutex_);
        if (!error_ || begin < error_begin_) {
          error_ = std::current_exception();
          error_begin_ = begin;
        }
        next_.store(units_, std::memory_order_relaxed);
      }
    }
  }

  void wait_for_workers() {
    const auto all_left = [this] { return entered_.load() == 0; };
    if (spin_until(all_left)) { return; }
    std::unique_lock lock(sleep_mutex_);
    caller_sleeps_.store(true);
    left_.wait(lock, all_left);
    caller_sleeps_.store(false);
  }

  void work() {
    t_in_loop = true;
    uint64_t seen = 0;
    const auto is_new = [&] {
      const uint64_t ticket = ticket_.load();
      return ticket != 0 && ticket != seen;
    };
    for (;;) {
      if (!spin_until(is_new)) {
        std::unique_lock lock(sleep_mutex_);
        ++sleepers_;
        wake_.wait(lock, [&] { return stop_ || is_new(); });
        --sleepers_;
        if (stop_) { return; }
      }
      ++entered_;
      const uint64_t ticket = ticket_.load();
      if (ticket != 0) {
        take_units();
        seen = ticket;
      }
      if (--entered_ == 0 && caller_sleeps_.load()) {
        { std::lock_guard lock(sleep_mutex_); }
        left_.notify_one();
      }
    }
  }

  const int threads_;
  std::mutex busy_;  // held by the caller during its loop
  // The open loop; written while no worker is inside.
  const Body* body_ = nullptr;
  int64_t n_ = 0, unit_ = 1, units_ = 0;
  uint64_t loops_ = 0;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  int64_t error_begin_ = 0;

  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> entered_{0};
  std::atomic<bool> caller_sleeps_{false};
  alignas(64) std::atomic<int> sleepers_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_, left_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

std::mutex g_mutex;  // creation and removal of the pool
std::atomic<Pool*> g_pool{nullptr};
std::atomic<int> g_threads{0};  // 0: not set yet

// At exit the workers are joined and later loops (of other static destructors) run inline. Inside a
// loop nobody can be joined: the process ends with its threads.
struct StopAtExit {
  ~StopAtExit() {
    if (t_in_loop) { return; }
    std::lock_guard lock(g_mutex);
    g_threads = 1;
    delete g_pool.exchange(nullptr);
  }
} g_stop_at_exit;

// A forked child has none of the workers: it forgets the pool (whose mutexes may be held by threads
// that no longer exist) and makes its own at its first loop.
const int g_at_fork = pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); },
                                     [] {
                                       g_pool.store(nullptr);
                                       t_in_loop = false;
                                       g_mutex.unlock();
                                     });

Pool& pool() {
  if (Pool* p = g_pool.load(std::memory_order_acquire)) { return *p; }
  std::lock_guard lock(g_mutex);
  if (!g_pool.load()) { g_pool.store(new Pool(threads())); }
  return *g_pool.load();
}

}  // namespace

void set_threads(int threads) {
  HEBB_ASSERT(threads >= 0);
  HEBB_ASSERT(!t_in_loop);
  std::lock_guard lock(g_mutex);
  delete g_pool.exchange(nullptr);
  g_threads = threads > 0 ? threads : usable_cores();
}

int threads() {
  int n = g_threads.load(std::memory_order_relaxed);
  if (n == 0) {
    int unset = 0;
    n = usable_cores();
    if (!g_threads.compare_exchange_strong(unset, n)) { n = unset; }
  }
  return n;
}

void parallel_for(int64_t n, int64_t grain, const Body& body) {
  HEBB_ASSERT(grain >= 1);
  if (n <= 0) { return; }
  if (n <= grain || t_in_loop || threads() == 1 || !pool().run(n, grain, body)) { body(0, n); }
}

}  // namespace hebb
