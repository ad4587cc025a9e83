#pragma once
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace hebb {

/// The result of a system call that says -1 for an error. A signal that interrupts it (EINTR) is no error: it is called
/// again. Not for close(2), which has closed the file by then.
template <class Call> auto retried(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) { return result; }
  }
}

/// The same for calls of std::filesystem that put their error into `error`.
template <class Call> void retried(std::error_code& error, Call&& call) {
  do { call(); } while (error == std::errc::interrupted);
}

/// The same for those that throw it.
template <class Call> auto retried_or_throws(Call&& call) {
  for (;;) {
    try {
      return call();
    } catch (const std::filesystem::filesystem_error& error) {
      if (error.code() != std::errc::interrupted) { throw; }
    }
  }
}

}  // namespace hebb
