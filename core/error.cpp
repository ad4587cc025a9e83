#include "core/error.h"

#include <fmt/core.h>

#include "core/names.h"

namespace hebb {
namespace {

std::string difference(std::string_view what, std::string_view found, std::string_view expected) {
  return fmt::format("{} (found {}, expected {})", what, found, expected);
}

}  // namespace

std::string located(std::string_view where, std::string_view what) {
  return printable(fmt::format("{}{}{}", where, where.empty() || what.empty() ? "" : ": ", what), true);
}

ConfigError::ConfigError(std::string_view where, std::string_view found, std::string_view expected)
    : Error(ExitCode::kUsage, located(where, fmt::format("found {}, expected {}", found, expected))) {}
ConfigError::ConfigError(std::string_view where, std::string_view what)
    : Error(ExitCode::kUsage, located(where, what)) {}

DataError::DataError(std::string_view where, std::string_view what) : Error(ExitCode::kData, located(where, what)) {}
DataError::DataError(std::string_view where, std::string_view what, std::string_view found, std::string_view expected)
    : Error(ExitCode::kData, located(where, difference(what, found, expected))) {}

CheckpointError::CheckpointError(std::string_view where, std::string_view what)
    : Error(ExitCode::kCheckpoint, located(where, what)) {}
CheckpointError::CheckpointError(std::string_view where, std::string_view what, std::string_view found,
                                 std::string_view expected)
    : Error(ExitCode::kCheckpoint, located(where, difference(what, found, expected))) {}

MemoryError::MemoryError(std::string_view where, std::string_view what)
    : Error(ExitCode::kMemory, located(where, what)) {}
NumericError::NumericError(std::string_view where, std::string_view what)
    : Error(ExitCode::kNumeric, located(where, what)) {}
CommError::CommError(std::string_view where, std::string_view what) : Error(ExitCode::kComm, located(where, what)) {}

void assertion_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(fmt::format("{}:{:d}: assertion failed: {}", file, line, condition));
}

}  // namespace hebb
