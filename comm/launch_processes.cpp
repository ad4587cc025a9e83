#include "comm/launch_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "core/files.h"

namespace hebb {

void wait_for_end(pid_t pid) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) {  // it has ended, or the kernel is older than 5.3
    while (::kill(pid, 0) == 0) { std::this_thread::sleep_for(std::chrono::seconds(1)); }
    return;
  }
  pollfd polled{fd, POLLIN, 0};
  while (::poll(&polled, 1, -1) < 0 && errno == EINTR) {}
  ::close(fd);
}

std::vector<pid_t> launched_processes(pid_t launcher, bool only_ranks) {
  const auto has = [](const std::string& variables, const std::string& variable) {
    return variables.starts_with(variable) || variables.find('\0' + variable) != std::string::npos;
  };
  std::string mark = "HEBB_LAUNCHER=" + std::to_string(launcher);
  mark += '\0';
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) { continue; }
    try {
      const std::string variables = read_file(entry.path() / "environ");
      const bool is_rank = has(variables, "RANK=") || has(variables, "OMPI_COMM_WORLD_RANK=");
      if (has(variables, mark) && (is_rank || !only_ranks)) { found.push_back(static_cast<pid_t>(std::stol(name))); }
    } catch (const Error&) {}  // it has ended, or is somebody else's
  }
  return found;
}

}  // namespace hebb
