#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/progress.h"
#include "train/append_file.h"

namespace hebb {

/// Where a run speaks to its user.
struct Console {
  std::function<void(std::string_view)> line;  // prints one line
  Progress* bar = nullptr;                     // on a terminal: replaces repeated step lines
};

/// What a run says: to the console and, once it has a folder, to RUN/train.log.
class RunLog {
 public:
  explicit RunLog(Console console) : console_(std::move(console)) {}
  /// Appends to `path` from now on; lines said before follow first.
  void open(const fs::path& path);
  /// One or several lines.
  void say(std::string_view text);
  /// A line for train.log alone; failures are ignored.
  void keep(std::string_view line) noexcept;
  /// The line of a logged step; on a terminal the bar shows `detail` instead.
  void step(std::string_view line, int64_t step, std::string_view detail);
  /// The bar's own work; nothing without a terminal. `done` was finished before.
  void begin_bar(std::string_view title, int64_t total, int64_t done = 0);
  void update_bar(int64_t done);
  void end_bar();

 private:
  Console console_;
  std::string early_;
  std::string detail_;  // of the bar
  std::unique_ptr<AppendFile> file_;
};

}  // namespace hebb
