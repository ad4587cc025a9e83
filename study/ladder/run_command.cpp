#include "study/ladder/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/files.h"

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

struct Pipe {
  Descriptor from, to;
};

Pipe make_pipe(const std::string& program) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) { throw Error(ExitCode::kOther, program + ": " + std::strerror(errno)); }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace

std::string CommandResult::text() const {
  std::string said = err.empty() ? out : err;
  while (!said.empty() && said.back() == '\n') { said.pop_back(); }
  return said;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) { lines.push_back(line); }
  return lines;
}

CommandResult run_command(const std::vector<std::string>& words) {
  std::vector<std::string> copy = words;
  std::vector<char*> raw;
  for (std::string& word : copy) { raw.push_back(word.data()); }
  raw.push_back(nullptr);
  Pipe out = make_pipe(words[0]), err = make_pipe(words[0]);
  const pid_t pid = ::fork();
  if (pid == 0) {  // only calls that are safe after fork
    if (::dup2(out.to.fd(), 1) == 1 && ::dup2(err.to.fd(), 2) == 2) { ::execvp(raw[0], raw.data()); }
    ::_exit(127);
  }
  out.to.close();
  err.to.close();
  CommandResult result;
  int status = 127 << 8;
  if (pid > 0) {
    read_both(out.from.fd(), err.from.fd(), result);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  }
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
