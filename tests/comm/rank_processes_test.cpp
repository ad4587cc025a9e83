// The launcher of ranks: signals, exit codes, causes, restarts, on the program rank_stub.
#include "comm/rank_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "comm/launch_processes.h"
#include "comm/restart.h"
#include "tests/longer_limits.h"
#include "tests/skip.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

fs::path beside_program(const char* name) { return fs::path(HEBB_BINARY).parent_path() / name; }

/// A launcher in a process of its own.
class Launcher {
 public:
  /// files: that it and its children may open at a time; 0: as many as this process.
  Launcher(int ranks, const std::vector<std::string>& arguments, int restarts = 0, rlim_t files = 0,
           double start_seconds = 300) {
    pid_ = ::fork();
    if (pid_ != 0) { return; }
    if (files > 0) {
      const rlimit limit{files, files};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    ::dup2(::open((folder_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    RankProcessesOptions options;
    options.program = beside_program("rank_stub");
    options.arguments = {folder_.path().string()};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    options.arguments_again = options.arguments;
    options.ranks = ranks;
    options.restarts = restarts;
    options.start_seconds = start_seconds;
    options.run_folder = folder_.path();
    int code = 99;
    try {
      code = run_rank_processes(options);
    } catch (const std::exception& error) { std::fprintf(stderr, "%s\n", error.what()); }
    ::_exit(code);
  }
  ~Launcher() {
    if (pid_ > 0) { ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0); }
  }

  pid_t pid() const { return pid_; }
  const TempFolder& folder() const { return folder_; }
  /// Its exit code, or 128 + signal.
  int wait() {
    int status = 0;
    await("the end of the launcher", [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void wait_for(const std::string& file) const {
    await(file, [&] { return fs::exists(folder_ / file); });
  }
  void kill_when(const std::function<bool()>& condition) {
    await("the moment of a kill", condition);
    ::kill(pid_, SIGKILL);
    wait();
    await("the end of mpirun and the ranks", [&] { return !has_process(); });
  }
  /// Whether rank 0 waits for the others.
  bool has_meeting() const {
    const fs::directory_iterator entries(folder_.path());
    return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
      return entry.path().filename().string().starts_with("rendezvous.");
    });
  }
  bool has_launched() const { return !launched_processes(pid_, false).empty(); }
  std::string text(const std::string& file) const { return read_file(folder_ / file); }

 private:
  /// Whether mpirun or a rank lives: the folder is one of their arguments.
  bool has_process() const {
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      std::ifstream file(entry.path() / "cmdline");
      for (std::string argument; std::getline(file, argument, '\0');) {
        if (argument == folder_.path().string()) { return true; }
      }
    }
    return false;
  }
  void await(const std::string& what, const std::function<bool()>& is_there) const {
    constexpr int kTries = 600'000;  // ten minutes, where a start beside other programs takes seconds
    bool is = is_there();
    for (int i = 0; i < kTries && !is; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      is = is_there();
    }
    INFO("waited for " << what);
    REQUIRE(is);
  }

  TempFolder folder_;
  pid_t pid_;
};

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n'), begin = text.find_last_of('\n', end);
  return text.substr(begin + 1, end - begin);
}

/// The inodes of TCP sockets that listen elsewhere than on loopback.
std::set<std::string> open_to_others() {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) { words >> skipped; }
      words >> inode;
      const bool is_loopback = local.starts_with("0100007F:") || local.starts_with("00000000000000000000000001000000:");
      if (state == "0A" && !is_loopback) { inodes.insert("socket:[" + inode + "]"); }
    }
  }
  return inodes;
}

/// How many sockets a process has that listen elsewhere than on loopback.
int ports_of(pid_t pid) {
  const std::set<std::string> listening = open_to_others();
  int count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code ignored;
    count += static_cast<int>(listening.count(fs::read_symlink(entry.path(), ignored).string()));
  }
  return count;
}

/// Exit code and lines of a launcher whose ranks are a script of a shell, without mpirun.
std::pair<int, std::string> launch_script(int ranks, const std::string& script) {
  const TempFolder folder;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(::open((folder / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    RankProcessesOptions options;
    options.program = "/bin/sh";
    options.arguments = {"-c", script};
    options.ranks = ranks;
    options.uses_gpu = true;
    int code = 99;
    try {
      code = run_rank_processes(options);
    } catch (const std::exception& error) { std::fprintf(stderr, "%s\n", error.what()); }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(folder / "stderr")};
}

/// The state after some steps of so many ranks.
std::string expected(int64_t steps, int64_t ranks) {
  int64_t state = 0;
  for (int64_t s = 1; s <= steps; ++s) { state = state * 31 + s * ranks * (ranks + 1) / 2; }
  return std::to_string(steps) + " " + std::to_string(state);
}

}  // namespace

TEST_CASE("ranks of an mpirun meet, add up and end") {
  if (!has_mpi()) { return; }
  Launcher launcher(3, {"5"});
  CHECK(launcher.wait() == 0);
  CHECK_THAT(launcher.text("stderr"), !Catch::Contains("error"));
  CHECK(launcher.text("result") == expected(5, 3));
}

TEST_CASE("the launcher hands on what ranks say, a last line without its end too", "[fast]") {
  const auto [code, lines] = launch_script(2, "echo rank $RANK begins >&2; printf 'rank %s' $RANK >&2; exit 3");
  CHECK(code == 3);
  for (const char* line : {"rank 0 begins\n", "rank 1 begins\n", "rank 0\n", "rank 1\n"}) {
    CHECK_THAT(lines, Catch::Contains(line));
  }
  CHECK_THAT(lines, Catch::EndsWith("error: the ranks ended with exit code 3\n"));
}

TEST_CASE("the error that ended ranks is the last line, once where nothing came behind it", "[fast]") {
  CHECK(launch_script(1, "echo first >&2; echo 'error: no disk' >&2; exit 4") ==
        std::pair<int, std::string>(4, "first\nerror: no disk\n"));
  CHECK(launch_script(1, "echo 'error: no disk' >&2; echo more >&2; echo 'error: late' >&2; exit 4") ==
        std::pair<int, std::string>(4, "error: no disk\nmore\nerror: late\nerror: no disk\n"));
}

TEST_CASE("a signal to the launcher stops all ranks after a save") {
  if (!has_mpi()) { return; }
  Launcher launcher(2, {"100000", "slow"});
  launcher.folder().write("train.log", "kept\n");
  launcher.wait_for("state");
  ::kill(launcher.pid(), SIGTERM);
  CHECK(launcher.wait() == 75);
  CHECK_THAT(launcher.text("stderr"), Catch::Contains("SIGTERM: the ranks stop\n") && !Catch::Contains("error"));
  CHECK(launcher.text("train.log") == "kept\nSIGTERM: the ranks stop\n");
  const std::string result = launcher.text("result");
  CHECK(result == expected(std::stol(result), 2));
}

TEST_CASE("two signals to the launcher at once are one stop") {
  if (!has_mpi()) { return; }
  Launcher launcher(2, {"100000", "slow"});
  launcher.wait_for("state");
  ::kill(launcher.pid(), SIGTERM);
  ::kill(launcher.pid(), SIGINT);
  CHECK(launcher.wait() == 75);
  const std::string result = launcher.text("result");
  CHECK(result == expected(std::stol(result), 2));
}

TEST_CASE("the launcher returns the code of a rank's error and says it last") {
  if (!has_mpi()) { return; }
  Launcher launcher(2, {"8", "data", "1", "3"}, 3);
  CHECK(launcher.wait() == 3);
  CHECK_THAT(last_line(launcher.text("stderr")),
             Catch::Contains("error: rank 1 (") && Catch::Contains("): shard.bin: checksum differs"));
}

TEST_CASE("a killed rank ends the run with 14, or is started again") {
  if (!has_mpi()) { return; }
  SECTION("without --restart") {
    CHECK(comes_within(0.3, [](double pause) {  // rank 0 to the sum in which it waits
      Launcher launcher(2, {"8", "kill", "1", "5", std::to_string(pause)});
      CHECK(launcher.wait() == 14);
      const std::string error = last_line(launcher.text("stderr"));
      CHECK_THAT(error,
                 Catch::Contains("error: rank 1 (") && Catch::Contains("lost: its connection closed; last seen in "));
      return error.find("; rank 0 waits in sum 1 of step 5") != std::string::npos;
    }));
  }
  SECTION("with --restart") {
    const int rank = GENERATE(0, 1);
    Launcher launcher(2, {"8", "kill", std::to_string(rank), "5"}, 1);
    CHECK(launcher.wait() == 0);
    CHECK_THAT(launcher.text("stderr"), Catch::Contains("restart 1: 2 ranks, from step_4, in 5 s, after "));
    CHECK(launcher.text("result") == expected(8, 2));
  }
}

TEST_CASE("nothing outlives a launcher that is killed") {
  if (!has_mpi()) { return; }
  Launcher launcher(2, {"100000", "slow"});
  launcher.kill_when([&] { return fs::exists(launcher.folder() / "state"); });
  const std::string result = launcher.text("result");  // the ranks save and end, as after SIGTERM
  CHECK(result == expected(std::stol(result), 2));
}

TEST_CASE("nothing outlives a launcher that is killed while ranks start") {
  if (!has_mpi()) { return; }
  Launcher launcher(2, {"100000", "slow"});
  const fs::path state = launcher.folder() / "state";  // there where the meeting was over in a millisecond
  launcher.kill_when([&] { return launcher.has_meeting() || fs::exists(state); });
  if (fs::exists(launcher.folder() / "result")) {  // otherwise a signal found a rank that had no handler yet
    const std::string result = launcher.text("result");
    CHECK(result == expected(std::stol(result), 2));
  } else {
    CHECK_FALSE(fs::exists(state));
  }
}

TEST_CASE("a rank that starts after the end of its launcher ends at once") {
  if (!has_mpi()) { return; }
  const TempFolder folder;
  const pid_t launcher = ::fork();
  if (launcher == 0) { ::_exit(0); }
  ::waitpid(launcher, nullptr, 0);
  const std::string command = "HEBB_LAUNCHER=" + std::to_string(launcher) + " RANK=0 WORLD_SIZE=2 " +
                              beside_program("rank_stub").string() + " " + (folder / "run").string() + " 5 2>" +
                              (folder / "stderr").string();
  const int status = std::system(command.c_str());
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 14));
  CHECK_THAT(read_file(folder / "stderr"), Catch::Contains("process " + std::to_string(launcher)));
  CHECK(!fs::exists(folder / "run"));
}

TEST_CASE("ranks on one host listen on loopback alone") {
  if (!has_mpi()) { return; }
  Launcher launcher(2, {"100000", "slow"});
  launcher.wait_for("state");
  const std::vector<pid_t> ranks = launched_processes(launcher.pid(), true);
  CHECK(ranks.size() == 2);
  for (const pid_t rank : ranks) { CHECK(ports_of(rank) == 0); }
  ::kill(launcher.pid(), SIGTERM);
  CHECK(launcher.wait() == 75);
}

TEST_CASE("mpirun that starts no rank is ended, and so is all that it left") {
  if (!has_mpi()) { return; }
  SECTION("when the time for a start is over") {
    Launcher launcher(2, {"5"}, 0, 32, 2);
    const pid_t pid = launcher.pid();
    CHECK(launcher.wait() == 14);
    CHECK_THAT(last_line(launcher.text("stderr")), Catch::Contains("error: ") && Catch::Contains("rank"));
    CHECK(launched_processes(pid, false).empty());
  }
  SECTION("when the launcher is killed") {
    Launcher launcher(2, {"5"}, 0, 32);
    launcher.kill_when([&] { return launcher.has_launched(); });
  }
}

TEST_CASE("restarts follow faults only, with growing pauses", "[fast]") {
  const auto end = [](int code) {
    return RunEnd{.code = code, .was_asked = false, .did_step = true, .has_new_checkpoint = false};
  };
  for (const int code : {0, 2, 3, 4, 5, 6, 75}) { CHECK(!RestartPolicy(9).next(end(code))); }
  RestartPolicy policy(6);
  std::vector<double> pauses;
  for (const int code : {1, 14, 137, 14, 14, 14}) { pauses.push_back(policy.next(end(code)).value_or(-1)); }
  CHECK(pauses == std::vector<double>{5, 10, 20, 40, 60, 60});
  CHECK(!policy.next(end(14)));
  RunEnd progress = end(14);
  progress.has_new_checkpoint = true;
  CHECK(policy.next(progress).value_or(-1) == 5);
  RunEnd nothing = end(14);
  nothing.did_step = false;
  CHECK(!RestartPolicy(3).next(nothing));
  RunEnd asked = end(143);
  asked.was_asked = true;
  CHECK(!RestartPolicy(3).next(asked));
  CHECK(!RestartPolicy(0).next(end(14)));
}
