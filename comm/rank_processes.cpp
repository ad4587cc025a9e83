#include "comm/rank_processes.h"

#include <fmt/core.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "comm/awake_time.h"
#include "comm/frames.h"
#include "comm/launch_processes.h"
#include "comm/restart.h"
#include "comm/sha256.h"
#include "core/error.h"
#include "core/json.h"
#include "core/stop_signals.h"

extern char** environ;

namespace hebb {
namespace {

constexpr int kComm = static_cast<int>(ExitCode::kComm), kStopped = static_cast<int>(ExitCode::kStopped);
constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};

StopRequest stop;  // asked of this process
volatile sig_atomic_t ends_ranks = 0;

extern "C" void note_signal(int number, siginfo_t* info, void*) {
  if (stop.take(number, *info, steady_ns())) { ends_ranks = 1; }
}

/// While one exists, signals to stop are noted.
class NotedSignals {
 public:
  NotedSignals() {
    stop.reset();
    ends_ranks = 0;
    struct sigaction action {};
    action.sa_sigaction = note_signal;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kSignals.size(); ++i) { sigaction(kSignals[i], &action, &before_[i]); }
  }
  ~NotedSignals() {
    for (size_t i = 0; i < kSignals.size(); ++i) { sigaction(kSignals[i], &before_[i], nullptr); }
  }
  NotedSignals(const NotedSignals&) = delete;
  NotedSignals& operator=(const NotedSignals&) = delete;

 private:
  std::array<struct sigaction, kSignals.size()> before_{};
};

/// The environment without variables that begin with one of `without`, and with others added. HEBB_LAUNCHER is this
/// process, which ranks do not outlive.
std::vector<std::string> environment(std::vector<std::string> without, const std::vector<std::string>& added) {
  std::vector<std::string> variables = added;
  variables.push_back("HEBB_LAUNCHER=" + std::to_string(::getpid()));
  without.emplace_back("HEBB_LAUNCHER=");
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string variable = *at;
    const auto begins = [&](const std::string& prefix) { return variable.starts_with(prefix); };
    if (std::none_of(without.begin(), without.end(), begins)) { variables.push_back(variable); }
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> raw;
  for (std::string& text : texts) { raw.push_back(text.data()); }
  raw.push_back(nullptr);
  return raw;
}

struct Child {
  pid_t pid = 0;
  Descriptor errors{};  // reads its stderr
  std::string line{};
  int code = -1;  // 128+n: signal n
};

/// In a process beside mpirun, its parent: SIGUSR1, which mpirun gets when the launcher dies, ends no mpirun without
/// ranks.
[[noreturn]] void end_with_launcher(pid_t launcher, pid_t mpirun) {
  ::prctl(PR_SET_NAME, "hebb-watchdog");
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // with mpirun
  if (::getppid() != mpirun) { ::_exit(0); }
  for (int fd = 0; fd < 1024; ++fd) { ::close(fd); }
  wait_for_end(launcher);
  for (int rounds = 0; rounds < 10; ::sleep(1)) {  // ranks that are there end by themselves, and then mpirun does
    rounds = launched_processes(launcher, true).empty() ? rounds + 1 : 0;
  }
  ::kill(mpirun, SIGKILL);
  for (;;) { ::pause(); }
}

/// In a process group of its own, so that a terminal's Ctrl-C reaches it through this process only.
Child start(std::vector<std::string> words, std::vector<std::string> variables, bool is_mpirun) {
  const std::vector<char*> arguments = pointers(words), environment = pointers(variables);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) { throw CommError(words[0], std::strerror(errno)); }
  Child child{.pid = 0, .errors = Descriptor(ends[0])};
  const Descriptor written(ends[1]);
  const pid_t parent = ::getpid();
  child.pid = ::fork();
  if (child.pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGUSR1);  // to mpirun too: after SIGTERM it leaves ranks a second, too little for a save
    ::signal(SIGUSR1, SIG_IGN);          // until the program has its own handler; signals to stop are sent again
    ::signal(SIGUSR2, SIG_IGN);
    if (const pid_t self = ::getpid(); is_mpirun && ::fork() == 0) { end_with_launcher(parent, self); }
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (::getppid() == parent && ::dup2(nothing, 0) == 0 && ::dup2(ends[1], 2) == 2) {
      ::execve(arguments[0], arguments.data(), environment.data());
    }
    ::_exit(127);
  }
  if (child.pid < 0) { throw CommError(words[0], std::string("cannot start a process: ") + std::strerror(errno)); }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return child;
}

std::vector<Child> start_on_gpus(const RankProcessesOptions& o, const std::vector<std::string>& arguments) {
  const std::string launch = make_secret().substr(0, 16);
  std::vector<Child> children;
  for (int r = 0; r < o.ranks; ++r) {
    std::vector<std::string> words{o.program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const std::string rank = std::to_string(r), size = std::to_string(o.ranks);
    children.push_back(start(
        words,
        environment({"MASTER_ADDR=", "MASTER_PORT="}, {"HEBB_LAUNCH=" + launch, "RANK=" + rank, "WORLD_SIZE=" + size,
                                                       "LOCAL_RANK=" + rank, "LOCAL_WORLD_SIZE=" + size}),
        false));
  }
  return children;
}

std::vector<Child> start_by_mpi([[maybe_unused]] const RankProcessesOptions& o,
                                [[maybe_unused]] const std::vector<std::string>& arguments) {
#ifdef HEBB_MPIEXEC
  std::vector<std::string> words{HEBB_MPIEXEC, "--oversubscribe", "--bind-to", "none", "--quiet"};
  if (::geteuid() == 0) { words.push_back("--allow-run-as-root"); }
  // Waiting ranks leave the cores to the others; containers may forbid to read the memory of other processes; on one
  // host nothing but shared memory is needed, and ranks open no ports.
  for (const auto& [key, value] : {std::pair{"mpi_yield_when_idle", "1"},
                                   {"btl_vader_single_copy_mechanism", "none"},
                                   {"pml", "ob1"},
                                   {"btl", "^tcp,ofi,openib,usnic,uct"},
                                   {"oob_tcp_if_include", "lo"}}) {
    words.insert(words.end(), {"--mca", key, value});
  }
  words.insert(words.end(), {"-n", std::to_string(o.ranks), o.program});
  words.insert(words.end(), arguments.begin(), arguments.end());
  if (!fs::exists(words[0])) {
    throw CommError(words[0], "does not exist; install the package openmpi-bin, which starts ranks on CPUs");
  }
  std::vector<Child> children;
  // Inside an allocation of Slurm mpirun would start ranks on other hosts.
  children.push_back(start(words, environment({"SLURM_", "HEBB_LAUNCH="}, {}), true));
  return children;
#else
  throw CommError("hebb train --ranks",
                  "this build is without MPI, which ranks on CPUs need; install the packages libopenmpi-dev and "
                  "openmpi-bin (tools/setup.sh --mpi), and build again");
#endif
}

void pass_on(const std::string& line) {
  std::fprintf(stderr, "%s\n", line.c_str());
  std::fflush(stderr);
}

void say(const fs::path& run, const std::string& line) {
  pass_on(line);
  if (!run.empty() && fs::exists(run / "train.log")) {
    std::ofstream(run / "train.log", std::ios::app) << line << "\n";
  }
}

/// One start of a run: its processes until the last has ended.
class Start {
 public:
  Start(const RankProcessesOptions& options, const std::vector<std::string>& arguments)
      : options_(options),
        children_(options.uses_gpu ? start_on_gpus(options, arguments) : start_by_mpi(options, arguments)) {}
  ~Start() {
    if (!all_ended()) { kill_all(); }
    for (const Child& child : children_) {
      if (child.code < 0) { ::waitpid(child.pid, nullptr, 0); }
    }
  }

  int run() {
    while (wait_for_lines() || !all_ended() || !launched_processes(::getpid(), false).empty()) {
      now_ = time_.now();
      if (all_ended()) { end_in_grace(); }
      reap();
      forward_signals();
      look_for_ranks();
    }
    if (!cause_.empty() && lines_since_cause_ > 0) { pass_on(cause_); }
    const int code = exit_code();
    if (code != 0 && code != kStopped && cause_.empty()) {
      cause_ = fmt::format("error: the ranks ended with exit code {:d}", code);
      pass_on(cause_);
    }
    return code;
  }
  const std::string& cause() const { return cause_; }

 private:
  bool all_ended() const {
    return std::all_of(children_.begin(), children_.end(), [](const Child& c) { return c.code >= 0; });
  }

  /// Whether anything can still be written: a process may have ended before its last lines have been read.
  bool wait_for_lines() {
    std::vector<pollfd> polled;
    for (const Child& child : children_) {
      if (child.errors.is_open()) { polled.push_back({child.errors.fd(), POLLIN, 0}); }
    }
    ::poll(polled.data(), polled.size(), 50);
    bool is_any = false;
    for (Child& child : children_) { is_any = read_lines(child) || is_any; }
    return is_any;
  }

  /// What lives on after its process, and keeps the pipe open, is not waited for.
  bool read_lines(Child& child) {
    char bytes[4096];
    while (child.errors.is_open()) {
      const ssize_t n = ::read(child.errors.fd(), bytes, sizeof bytes);
      if (n < 0 && errno == EAGAIN) { return child.code < 0; }
      if (n < 0 && errno == EINTR) { continue; }
      if (n <= 0) { child.errors.close(); }
      for (ssize_t i = 0; i < n; ++i) {
        if (bytes[i] != '\n') {
          child.line += bytes[i];
        } else {
          take_line(std::exchange(child.line, ""));
        }
      }
    }
    if (!child.line.empty()) { take_line(std::exchange(child.line, "")); }
    return false;
  }

  void take_line(const std::string& line) {
    pass_on(line);
    const bool is_error = line.starts_with("error: ") || (line.starts_with("rank ") && line.find(": error: ") < 300);
    if (cause_.empty() && is_error) {
      cause_ = line;
      end_in_grace();  // mpirun may wait for ever for a rank that was killed while MPI started
    } else if (!cause_.empty()) {
      ++lines_since_cause_;
    }
  }

  void reap() {
    for (Child& child : children_) {
      int status = 0;
      if (child.code < 0 && ::waitpid(child.pid, &status, WNOHANG) == child.pid) {
        child.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (child.code != 0 && child.code != kStopped) { end_in_grace(); }
      }
    }
    if (kill_at_ && now_ >= *kill_at_) { kill_all(); }
  }

  /// After a fault the ranks end by themselves within that time.
  void end_in_grace() {
    if (!kill_at_) { kill_at_ = now_ + options_.grace_seconds; }
  }

  /// mpirun that cannot start a rank may wait for ever.
  void look_for_ranks() {
    if (has_begun_ || options_.uses_gpu || now_ < next_look_) { return; }
    next_look_ = now_ + 1;
    has_begun_ = !launched_processes(::getpid(), true).empty();
    if (has_begun_ || now_ < options_.start_seconds) { return; }
    if (launched_processes(::getpid(), false).empty()) { return; }  // /proc hides even mpirun, or it has yet to begin
    has_begun_ = true;
    take_line(
        fmt::format("error: mpirun started no rank within {:g} s (too few file descriptors, ulimit -n, or processes, "
                    "ulimit -u, are possible reasons)",
                    options_.start_seconds));
    kill_at_ = now_;
  }

  /// To stop is asked for by SIGUSR1 with the cause; again each second, since a rank that starts ignores it. A later
  /// SIGINT or SIGTERM ends ranks.
  void forward_signals() {
    if (stop.cause() == 0 || (now_ < next_signal_ && ends_ranks == 0)) { return; }
    if (next_signal_ == 0) { say(options_.run_folder, fmt::format("{}: the ranks stop", signal_name(stop.cause()))); }
    next_signal_ = now_ + 1;
    if (ends_ranks == 0) {
      for (const pid_t rank : ranks()) { send_stop(rank, stop.cause()); }
    } else if (!kill_at_) {
      signal_all(SIGTERM);
      kill_at_ = now_ + 3;
    }
  }

  /// Those that run. mpirun, where /proc hides them: it hands SIGUSR1 on, without the cause.
  std::vector<pid_t> ranks() const {
    std::vector<pid_t> found;
    if (!options_.uses_gpu) { found = launched_processes(::getpid(), true); }
    for (const Child& child : children_) {
      if (child.code < 0 && (options_.uses_gpu || found.empty())) { found.push_back(child.pid); }
    }
    return found;
  }

  void signal_all(int number) const {
    for (const Child& child : children_) {
      if (child.code < 0) { ::kill(child.pid, number); }
    }
  }

  /// mpirun and the ranks, which are in process groups of their own.
  void kill_all() const {
    signal_all(SIGKILL);
    for (const pid_t pid : launched_processes(::getpid(), false)) { ::kill(pid, SIGKILL); }
  }

  /// Of the rank that had the error; 14 where a rank was killed, unless that was asked for.
  int exit_code() const {
    int result = 0;
    const auto weight = [](int code) {
      return code == 0 ? 0 : code == kStopped ? 1 : code > 128 ? 2 : code == kComm ? 3 : 4;
    };
    for (const Child& child : children_) {
      if (weight(child.code) > weight(result)) { result = child.code; }
    }
    if (ends_ranks != 0 && result != 0 && result != kStopped) { return 128 + SIGTERM; }
    return result > 128 && stop.cause() == 0 ? kComm : result;
  }

  const RankProcessesOptions& options_;
  std::vector<Child> children_;
  std::string cause_;
  int lines_since_cause_ = 0;
  AwakeTime time_;
  double now_ = 0, next_signal_ = 0, next_look_ = 0;
  bool has_begun_ = false;  // a rank
  std::optional<double> kill_at_;
};

/// What a run has in its folder.
struct Traces {
  std::string checkpoint;  // the latest
  std::optional<fs::file_time_type> metrics{};
};

Traces traces_of(const fs::path& run) {
  Traces traces;
  std::error_code error;
  try {
    traces.checkpoint = read_file(run / "checkpoints" / "latest");
    traces.checkpoint.erase(traces.checkpoint.find_last_not_of(" \n") + 1);
  } catch (const Error&) {}  // none yet
  const auto time = fs::last_write_time(run / "metrics.jsonl", error);
  if (!error) { traces.metrics = time; }
  return traces;
}

/// Whether a flight record since `begin` tells of a step.
bool flight_tells_of_step(const fs::path& run, fs::file_time_type begin) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "logs", ignored)) {
    if (!entry.path().filename().string().starts_with("flight_")) { continue; }
    try {
      const Json record = parse_json_file(entry.path().string());
      if (fs::last_write_time(entry.path()) >= begin && frame_integer(record, "steps") > 0) { return true; }
    } catch (const std::exception&) {}  // half a record tells nothing
  }
  return false;
}

}  // namespace

int run_rank_processes(const RankProcessesOptions& options) {
  const NotedSignals signals;
  RestartPolicy policy(options.restarts);
  const std::vector<std::string>* arguments = &options.arguments;
  for (int restarts = 1;; ++restarts) {
    const Traces before = traces_of(options.run_folder);
    const auto begin = fs::file_time_type::clock::now();
    Start start(options, *arguments);
    const int code = start.run();
    const Traces after = traces_of(options.run_folder);
    const bool has_checkpoint = after.checkpoint != before.checkpoint;
    const bool did_step =
        has_checkpoint || after.metrics != before.metrics || flight_tells_of_step(options.run_folder, begin);
    const std::optional<double> wait = policy.next(
        {.code = code, .was_asked = stop.cause() != 0, .did_step = did_step, .has_new_checkpoint = has_checkpoint});
    if (!wait) { return code; }
    say(options.run_folder, fmt::format("restart {:d}: {:d} ranks, {}, in {:d} s, after {}", restarts, options.ranks,
                                        after.checkpoint.empty() ? "from the start" : "from " + after.checkpoint,
                                        static_cast<int>(*wait), start.cause()));
    AwakeTime time;
    while (time.now() < *wait && stop.cause() == 0) { ::poll(nullptr, 0, 50); }
    if (stop.cause() != 0) { return code; }
    arguments = &options.arguments_again;
  }
}

}  // namespace hebb
