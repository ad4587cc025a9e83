#include "core/log.h"

#include <fmt/core.h>

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <string>

#include "core/append_file.h"

namespace hebb {

/// spdlog's own file sinks buffer, and reopen or flush by rules of theirs.
class AppendSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit AppendSink(const fs::path& path) : file_(path) {}
  std::string sync() {
    const std::lock_guard lock(mutex_);
    return file_.sync();
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    file_.append({line.data(), line.size()});
  }
  void flush_() override {}

  AppendFile file_;
};

namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: break;
  }
  return spdlog::level::err;
}

}  // namespace

LogFile::LogFile(const fs::path& path, int64_t rank)
    : sink_(std::make_shared<AppendSink>(path)), logger_(std::make_unique<spdlog::logger>("hebb", sink_)) {
  logger_->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      fmt::format("%Y-%m-%d %H:%M:%S.%e %z [%l] rank {:d}: %v", rank), spdlog::pattern_time_type::local, "\n"));
  // spdlog prints what a sink throws on stderr and goes on. Here it ends the run: rethrown from within spdlog's
  // handler.
  logger_->set_error_handler([](const std::string&) { throw; });
}

LogFile::~LogFile() = default;

std::string LogFile::sync() { return sink_->sync(); }

void LogFile::line(LogLevel level, std::string_view text) {
  logger_->log(level_of(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace hebb
