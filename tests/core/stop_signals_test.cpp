#include "core/stop_signals.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"

namespace hebb {
namespace {

constexpr int64_t kSecond = 1000000000, kFirst = 5 * kSecond;

siginfo_t sent(int code, int value = 0) {
  siginfo_t info{};
  info.si_code = code;
  info.si_value.sival_int = value;
  return info;
}

/// Wait status of a child that does this.
template <class Act> int status_of(Act&& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    act();
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("signals within two seconds of the first are one stop", "[fast]") {
  StopRequest request;
  CHECK(request.cause() == 0);
  CHECK_FALSE(request.take(SIGHUP, sent(SI_USER), kFirst));
  for (const int64_t late : {int64_t{0}, kSecond / 100, 2 * kSecond - 1}) {
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
      CHECK_FALSE(request.take(signal, sent(SI_USER), kFirst + late));
    }
  }
  CHECK(request.cause() == SIGHUP);
  for (const int64_t late : {2 * kSecond, 3600 * kSecond}) {
    for (const int signal : {SIGUSR1, SIGUSR2, SIGHUP, SIGPIPE, SIGXCPU}) {
      CHECK_FALSE(request.take(signal, sent(SI_USER), kFirst + late));
    }
    CHECK(request.take(SIGTERM, sent(SI_USER), kFirst + late));
    CHECK(request.take(SIGINT, sent(SI_USER), kFirst + late));
  }
  CHECK(request.cause() == SIGHUP);
  request.reset();
  CHECK_FALSE(request.take(SIGTERM, sent(SI_USER), kFirst + 7200 * kSecond));
}

TEST_CASE("a stop that is handed on has the name of its cause", "[fast]") {
  const auto cause = [](const siginfo_t& info) {
    StopRequest request;
    request.take(SIGUSR1, info, kFirst);
    return std::string(signal_name(request.cause()));
  };
  CHECK(cause(sent(SI_QUEUE, SIGHUP)) == "SIGHUP");
  CHECK(cause(sent(SI_QUEUE, SIGTERM)) == "SIGTERM");
  CHECK(cause(sent(SI_QUEUE, 0)) == "SIGUSR1");
  CHECK(cause(sent(SI_QUEUE, SIGSEGV)) == "SIGUSR1");
  CHECK(cause(sent(SI_USER, SIGHUP)) == "SIGUSR1");
  CHECK(std::string(signal_name(0)).empty());
}

TEST_CASE("a process hears of the first signal, and one that is sent again and again ends it", "[fast]") {
  const int64_t begin = steady_ns();
  const int status = status_of([] {
    const StopSignals signals;
    send_stop(::getpid(), SIGXCPU);
    raise(SIGUSR2);
    while (signals.received() == "SIGXCPU") {
      raise(SIGTERM);
      ::usleep(1000);
    }
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK(steady_ns() - begin >= 2 * kSecond);
}

TEST_CASE("a limit of CPU time asks for a stop before the kernel ends the process", "[fast]") {
  for (const rlim_t hard : {rlim_t{2}, rlim_t{600}}) {
    const int status = status_of([&] {
      const rlimit limit{hard, hard};
      ::setrlimit(RLIMIT_CPU, &limit);
      const StopSignals signals;
      rlimit now{};
      ::getrlimit(RLIMIT_CPU, &now);
      const bool is_below = now.rlim_cur == (hard == 2 ? 1 : 540) && now.rlim_max == hard;
      while (hard == 2 && signals.received().empty()) {}
      if (is_below && (hard != 2 || signals.received() == "SIGXCPU")) { ::_exit(0); }
    });
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
}

}  // namespace hebb
