#pragma once
// The hebb program as a child process.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/files.h"
#include "tests/paths.h"
#include "tests/skip.h"
#include "tests/test.h"

namespace hebb::testing {

/// A running child whose output goes to files beside `output` (".out", ".err").
class Process {
 public:
  Process(std::vector<std::string> arguments, const fs::path& output, const fs::path& folder = ".")
      : out_(output.string() + ".out"), err_(output.string() + ".err") {
    arguments.insert(arguments.begin(), binary_path());
    std::vector<char*> raw;
    for (std::string& a : arguments) { raw.push_back(a.data()); }
    raw.push_back(nullptr);
    for (const std::string& path : {out_, err_}) {
      std::ofstream(path).flush();  // there to be read before the child runs
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      const bool is_ready = ::chdir(folder.c_str()) == 0 && redirect(out_, 1) && redirect(err_, 2);
      if (is_ready) { ::execv(raw[0], raw.data()); }
      ::_exit(127);
    }
  }
  ~Process() {
    if (pid_ > 0) {
      kill(SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal) const { ::kill(pid_, signal); }
  /// Exit code, or 128 + signal.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Waits for the end, which must have this exit code.
  void expect(int code) {
    const int found = wait();
    INFO(out() << err());
    REQUIRE(found == code);
  }
  /// Whether it ended within the time; then wait() returns at once.
  bool ends_within(int milliseconds) const {
    for (int waited = 0;; ++waited) {
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid != 0) { return true; }
      if (waited >= milliseconds) { return false; }
      ::usleep(1000);
    }
  }
  /// Whether it ends; after ten minutes it hangs.
  bool ends() const { return ends_within(600000); }
  /// Waits until the output holds `text`; false when the process ended without it.
  bool prints(const std::string& text) const {
    for (;;) {
      const bool has_ended = ends_within(5);
      if (out().find(text) != std::string::npos) { return true; }
      if (has_ended) {
        UNSCOPED_INFO(out() << err());
        return false;
      }
    }
  }
  std::string out() const { return read_file(out_); }
  std::string err() const { return read_file(err_); }

 private:
  static bool redirect(const std::string& path, int to) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    return fd >= 0 && ::dup2(fd, to) == to;
  }

  std::string out_, err_;
  pid_t pid_ = 0;
};

struct Result {
  int code;
  std::string out, err;
};

inline Result run_hebb(const std::vector<std::string>& arguments, const fs::path& output,
                       const fs::path& folder = ".") {
  Process process(arguments, output, folder);
  const int code = process.wait();
  return {code, process.out(), process.err()};
}

}  // namespace hebb::testing
