#include "core/parallel.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/skip.h"
#include "tests/test.h"

namespace {

struct Threads {
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(0); }
};

}  // namespace

TEST_CASE("parallel_for covers every index once, in ranges of whole grains", "[fast][threads]") {
  for (int count : {1, 2, 3, 5}) {
    const Threads use(count);
    CHECK(threads() == count);
    for (int64_t n : {1, 2, 7, 64, 1000, 12345}) {
      for (int64_t grain : {1, 3, 100, 20000}) {
        std::vector<int> hits(static_cast<size_t>(n));
        std::atomic<int> bad{0};
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          bad += begin % grain != 0 || (end % grain != 0 && end != n) || begin >= end;
          for (int64_t i = begin; i < end; ++i) { ++hits[static_cast<size_t>(i)]; }
        });
        CHECK(bad == 0);
        CHECK(hits == std::vector<int>(static_cast<size_t>(n), 1));
      }
    }
  }
}

TEST_CASE("an empty loop calls nothing", "[fast]") {
  parallel_for(0, 1, [](int64_t, int64_t) { throw std::logic_error("called"); });
  SUCCEED();
}

TEST_CASE("many short loops follow one another", "[fast][threads]") {
  const Threads use(3);
  int64_t total = 0;
  for (int loop = 0; loop < 3000; ++loop) {
    int64_t part[5] = {};
    parallel_each(5, 1, [&](int64_t i) { part[i] = i + loop; });
    for (int64_t p : part) { total += p; }
  }
  CHECK(total == 3000 * 10 + 5 * (2999 * 3000 / 2));
}

TEST_CASE("all threads can be inside a loop at once", "[fast][threads]") {
  const Threads use(3);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> inside{0};
  parallel_for(3, 1, [&](int64_t, int64_t) {
    ++inside;
    while (inside.load() < 3) { std::this_thread::yield(); }
    std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  CHECK(ids.size() == 3);
}

TEST_CASE("an inner loop runs on the thread that calls it", "[fast][threads]") {
  const Threads use(3);
  std::atomic<int> elsewhere{0}, sum{0};
  parallel_each(8, 1, [&](int64_t) {
    const auto self = std::this_thread::get_id();
    parallel_for(10, 2, [&](int64_t b, int64_t e) {
      elsewhere += std::this_thread::get_id() != self;
      sum += static_cast<int>(e - b);
    });
  });
  CHECK(elsewhere == 0);
  CHECK(sum == 80);
}

TEST_CASE("loops of several threads run side by side", "[fast][threads]") {
  const Threads use(2);
  std::vector<int64_t> sums(3);
  std::vector<std::thread> callers;
  for (size_t c = 0; c < sums.size(); ++c) {
    callers.emplace_back([&sums, c] {
      for (int loop = 0; loop < 200; ++loop) {
        std::atomic<int64_t> sum{0};
        parallel_for(50, 1, [&](int64_t b, int64_t e) { sum += e - b; });
        sums[c] += sum;
      }
    });
  }
  for (std::thread& t : callers) { t.join(); }
  for (int64_t s : sums) { CHECK(s == 200 * 50); }
}

TEST_CASE("the exception of the lowest failing range is rethrown and the pool goes on", "[fast][threads]") {
  for (int count : {1, 2, 4}) {
    const Threads use(count);
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::string message;
      try {
        parallel_each(400, 1, [](int64_t i) {
          if (i >= 37) { throw std::runtime_error("index " + std::to_string(i)); }
        });
      } catch (const std::runtime_error& e) { message = e.what(); }
      CHECK(message == "index 37");
    }
    std::atomic<int64_t> sum{0};
    parallel_for(400, 1, [&](int64_t b, int64_t e) { sum += e - b; });
    CHECK(sum == 400);
  }
}

TEST_CASE("zero threads means the cores that this process may use", "[fast]") {
  set_threads(0);
  CHECK(threads() >= 1);
  CHECK(threads() <= static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)));
}

// Address space for the stacks of a few threads only: in a child, so that the limit ends with it.
TEST_CASE("more threads than the system starts are an error, and the pool can be made smaller", "[fast]") {
  if (hebb::testing::is_sanitized()) { return skip_case("sanitizers take the address space"); }
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{rlim_t{2} << 30, rlim_t{2} << 30};
    ::setrlimit(RLIMIT_AS, &limit);
    const auto fill = [] { parallel_for(1000, 1, [](int64_t, int64_t) {}); };
    bool is_refused = false;
    set_threads(100000);
    try {
      fill();
    } catch (const ConfigError& error) {
      is_refused =
          std::string(error.what()).starts_with("threads: found 100000, expected a number that the system can start");
    }
    set_threads(2);
    fill();
    ::_exit(is_refused ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

// The thread sanitizer does not support threads in the child of a multi-threaded fork, and the allocator of GCC's
// address sanitizer stays locked there for ever if a thread of the parent was in it, as one that has just been started
// is.
TEST_CASE("a forked child makes its own workers and exits cleanly", "[fast]") {
  if (hebb::testing::is_sanitized()) { return skip_case("sanitizers know no threads in a forked child"); }
  const Threads use(2);
  const auto sum_of = [] {
    std::atomic<int64_t> sum{0};
    parallel_for(100, 1, [&](int64_t b, int64_t e) { sum += e - b; });
    return sum.load();
  };
  REQUIRE(sum_of() == 100);
  const pid_t child = fork();
  if (child == 0) {
    const int64_t sum = sum_of();
    set_threads(3);
    _exit(sum == 100 && sum_of() == 100 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(sum_of() == 100);
}
