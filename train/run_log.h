#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/progress.h"

namespace hebb {

/// Where a run speaks to its user.
struct Console {
  std::function<void(std::string_view)> line;  // prints one line
  Progress* bar = nullptr;                     // on a terminal: replaces repeated step lines
};

/// What a run says: to the console and to a file, which gets what was said before it is open, too.
class RunLog {
 public:
  explicit RunLog(Console console) : console_(std::move(console)) {}
  /// Appends to `path` from now on, as `rank`.
  void open(const fs::path& path, int64_t rank);
  /// One or several lines, as they are on the console. Errors: CheckpointError (train.log).
  void say(std::string_view text, LogLevel level = LogLevel::info);
  /// The same, where the console gets `brief` instead.
  void say_in_brief(std::string_view text, std::string_view brief);
  /// The same with the word "warning: " on the console.
  void warn(std::string_view line);
  /// Brings the file onto the disk and warns where somebody has touched it.
  void sync();
  /// The error that ends the run, for train.log alone: the program prints it. Failures are ignored.
  void error(std::string_view line) noexcept;
  /// The line of a logged step; on a terminal the bar shows `detail` instead, from its next update on.
  void step(std::string_view line, std::string_view detail);
  /// The bar's own work; nothing without a terminal. `done` was finished before. A part has a bar of its own in
  /// between.
  void begin_bar(std::string_view title, int64_t total, int64_t done = 0);
  void begin_part(std::string_view title, int64_t total);
  void update_part(int64_t done);
  void end_part();
  void update_bar(int64_t done, double seconds_left);
  void end_bar();

 private:
  Console console_;
  void write(LogLevel level, std::string_view line);

  std::string detail_;                                   // of the bar
  std::vector<std::pair<LogLevel, std::string>> early_;  // lines before the file is open
  std::unique_ptr<LogFile> file_;
};

}  // namespace hebb
