#include "study/ladder/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/retry.h"

namespace hebb {

ChildProcess::ChildProcess(const std::string& program, const std::vector<std::string>& arguments, const fs::path& log) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> raw;
  for (std::string& word : words) { raw.push_back(word.data()); }
  raw.push_back(nullptr);
  const int out = retried([&] { return ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666); });
  if (out < 0) { throw CheckpointError(log.string(), std::string("cannot open: ") + std::strerror(errno)); }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {  // only calls that are safe after fork
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGUSR1);
    if (::getppid() == parent && ::dup2(out, 1) == 1 && ::dup2(out, 2) == 2) { ::execv(raw[0], raw.data()); }
    ::_exit(127);
  }
  const int error = errno;
  ::close(out);
  if (pid_ < 0) {
    pid_ = 0;
    throw CheckpointError(program, std::string("cannot start a process: ") + std::strerror(error));
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    retried([&] { return ::waitpid(pid_, nullptr, 0); });
  }
}

std::optional<int> ChildProcess::poll() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) { return std::nullopt; }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace hebb
