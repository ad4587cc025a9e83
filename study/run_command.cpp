#include "study/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/error.h"

namespace hebb {
namespace {

/// Reads both pipes to their ends.
void read_both(int out, int err, CommandResult& result) {
  std::array<pollfd, 2> open = {pollfd{out, POLLIN, 0}, pollfd{err, POLLIN, 0}};
  const std::array<std::string*, 2> texts = {&result.out, &result.err};
  while (open[0].fd >= 0 || open[1].fd >= 0) {
    if (::poll(open.data(), open.size(), -1) < 0 && errno != EINTR) { return; }
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) { continue; }
      char bytes[4096];
      const ssize_t n = ::read(open[i].fd, bytes, sizeof bytes);
      if (n > 0) {
        texts[i]->append(bytes, static_cast<size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        open[i].fd = -1;  // poll passes it over
      }
    }
  }
}

}  // namespace

std::string CommandResult::text() const {
  std::string said = err.empty() ? out : err;
  while (!said.empty() && said.back() == '\n') { said.pop_back(); }
  return said;
}

CommandResult run_command(const std::vector<std::string>& words) {
  std::vector<std::string> copy = words;
  std::vector<char*> raw;
  for (std::string& word : copy) { raw.push_back(word.data()); }
  raw.push_back(nullptr);
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) { throw Error(ExitCode::kOther, words[0] + ": " + std::strerror(errno)); }
  if (::pipe2(err, O_CLOEXEC) != 0) {
    ::close(out[0]);
    ::close(out[1]);
    throw Error(ExitCode::kOther, words[0] + ": " + std::strerror(errno));
  }
  const pid_t pid = ::fork();
  if (pid == 0) {  // only calls that are safe after fork
    if (::dup2(out[1], 1) == 1 && ::dup2(err[1], 2) == 2) { ::execvp(raw[0], raw.data()); }
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  CommandResult result;
  int status = 127 << 8;
  if (pid > 0) {
    read_both(out[0], err[0], result);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  }
  ::close(out[0]);
  ::close(err[0]);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

bool is_on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) { return true; }
  }
  return false;
}

std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) { quoted += c == '\'' ? "'\\''" : std::string(1, c); }
  return quoted + "'";
}

}  // namespace hebb
