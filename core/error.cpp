#include "core/error.h"

#include <fmt/core.h>

namespace hebb {
namespace {

std::string join(std::string_view where, std::string_view what) {
  std::string message(where);
  if (!message.empty()) { message += ": "; }
  return message += what;
}

std::string join(std::string_view where, std::string_view what, std::string_view found, std::string_view expected) {
  std::string message = join(where, what);
  message += " (found ";
  message += found;
  message += ", expected ";
  message += expected;
  return message += ")";
}

}  // namespace

ConfigError::ConfigError(std::string_view where, std::string_view found, std::string_view expected)
    : Error(ExitCode::kUsage, join(where, "found " + std::string(found) + ", expected " + std::string(expected))) {}
ConfigError::ConfigError(std::string_view where, std::string_view what) : Error(ExitCode::kUsage, join(where, what)) {}

DataError::DataError(std::string_view where, std::string_view what) : Error(ExitCode::kData, join(where, what)) {}
DataError::DataError(std::string_view where, std::string_view what, std::string_view found, std::string_view expected)
    : Error(ExitCode::kData, join(where, what, found, expected)) {}

CheckpointError::CheckpointError(std::string_view where, std::string_view what)
    : Error(ExitCode::kCheckpoint, join(where, what)) {}
CheckpointError::CheckpointError(std::string_view where, std::string_view what, std::string_view found,
                                 std::string_view expected)
    : Error(ExitCode::kCheckpoint, join(where, what, found, expected)) {}

MemoryError::MemoryError(std::string_view where, std::string_view what) : Error(ExitCode::kMemory, join(where, what)) {}
NumericError::NumericError(std::string_view where, std::string_view what)
    : Error(ExitCode::kNumeric, join(where, what)) {}
CommError::CommError(std::string_view where, std::string_view what) : Error(ExitCode::kComm, join(where, what)) {}

void assertion_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(fmt::format("{}:{:d}: assertion failed: {}", file, line, condition));
}

}  // namespace hebb
