#pragma once
// Progress of long work. Library code reports to a Progress that its caller passes in and never
// prints; the command line passes the terminal's.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hebb {

/// Receives the progress of one piece of work at a time. Calls come from one thread. The base class
/// ignores everything.
class Progress {
 public:
  /// How `done` and `total` are written: 1536 as "1536", as "1.5 KiB" or (millions of FLOPs) as "1.54 GFLOP".
  enum class Unit { count, bytes, megaflops };

  virtual ~Progress() = default;
  /// Starts a task of `total` units (0 = unknown). `done` of them were finished before: see skip().
  virtual void begin(std::string_view title, uint64_t total, Unit unit = Unit::count, uint64_t done = 0) {}
  /// So many units cost no time of this task: they count for the bar, not for rate and time left.
  virtual void skip(uint64_t done) {}
  /// `done` units so far; `detail` follows the numbers: fields by importance ("loss 3.041, gnorm 0.41"). Cheap: may
  /// be called often.
  virtual void update(uint64_t done, std::string_view detail = {}) {}
  /// The seconds that are left, where the caller knows better than the rate so far.
  virtual void time_left(double seconds) {}
  virtual void end() {}
  /// Work in between, with a bar of its own until end_part(); the task's time goes on.
  virtual void begin_part(std::string_view title, uint64_t total, Unit unit = Unit::count) {}
  virtual void end_part() {}
  /// A line of its own, above the bar: something that the user should know.
  virtual void message(std::string_view text) {}
};

/// Where TextProgress writes and what it may assume; a test passes its own.
struct ProgressOutput {
  std::function<void(std::string_view)> write;
  std::function<double()> seconds;  // a clock that never goes back
  std::function<int()> columns;     // width of the terminal
  bool is_terminal = false;         // one line redrawn in place, else plain lines
  double line_seconds = 10;         // at least, between two plain lines
};

/// A bar with rate and time left on a terminal, redrawn at most ten times a second; elsewhere a plain
/// line at the start, every `line_seconds`, and at the end:
/// `encode: 412.0 MiB of 1.2 GiB (33%), 9.8 MiB/s, eta 00:01:23, loss 3.041`.
/// On a terminal the bar of a part leaves no line. Where the terminal is too narrow, bar, rate, share and then the last
/// fields of `detail` are left out.
class TextProgress final : public Progress {
 public:
  explicit TextProgress(ProgressOutput output) : output_(std::move(output)) {}
  ~TextProgress() override;
  void begin(std::string_view title, uint64_t total, Unit unit, uint64_t done = 0) override;
  void skip(uint64_t done) override;
  void update(uint64_t done, std::string_view detail) override;
  void time_left(double seconds) override;
  void end() override;
  void begin_part(std::string_view title, uint64_t total, Unit unit) override;
  void end_part() override;
  void message(std::string_view text) override;

 private:
  struct Task {
    std::string title, detail{};
    Unit unit = Unit::count;
    uint64_t done = 0, skipped = 0, total = 0;
    double started = 0;
    std::optional<double> seconds_left{};
  };

  void start(std::string_view title, uint64_t total, Unit unit, uint64_t done);
  std::string line(bool finished) const;
  void draw(bool finished);
  void clear();

  ProgressOutput output_;
  Task task_;                  // the part, while one goes on
  std::optional<Task> whole_;  // which the part is of
  double drawn_ = 0;
  bool active_ = false, on_screen_ = false;
};

/// Progress on stderr: a bar when stderr is a terminal and NO_COLOR is unset or empty, else plain lines.
std::unique_ptr<Progress> stderr_progress(double line_seconds = 10);

/// "1536 B" as "1.5 KiB"; up to TiB.
std::string format_bytes(double bytes);
/// 1.54e9 as "1.54 GFLOP"; up to RFLOP (1e27).
std::string format_flops(double flops);
/// Seconds as "HH:MM:SS", with days in front from one day on ("2d 03:00:00").
std::string format_duration(double seconds);

}  // namespace hebb
