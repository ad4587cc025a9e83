#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/files.h"

namespace spdlog {
class logger;
}

namespace hebb {

class AppendSink;

enum class LogLevel { info, warning, error };

/// A log file that grows by whole lines, each with local time and its distance to UTC, level and rank:
/// `2026-11-23 09:10:11.123 +01:00 [info] rank 0: text`.
class LogFile {
 public:
  /// Appends to `path`. Errors, here and of line(): CheckpointError with path and reason.
  LogFile(const fs::path& path, int64_t rank);
  ~LogFile();
  /// One line without its end. It has reached the system when this returns.
  void line(LogLevel level, std::string_view text);
  /// AppendFile::sync().
  std::string sync();

 private:
  std::shared_ptr<AppendSink> sink_;
  std::unique_ptr<spdlog::logger> logger_;
};

}  // namespace hebb
