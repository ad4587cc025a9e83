#include "core/progress.h"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/elapsed.h"
#include "core/error.h"
#include "core/terminal.h"
#include "core/utf8.h"

namespace hebb {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kBarCells = 24;
constexpr int kDefaultColumns = 100;

std::string amount(double value, Progress::Unit unit) {
  if (unit == Progress::Unit::bytes) { return format_bytes(value); }
  if (unit == Progress::Unit::megaflops) { return format_flops(1e6 * value); }
  return value < 1e6 || value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

std::string rate(double per_second, Progress::Unit unit) {
  if (unit == Progress::Unit::bytes) { return format_bytes(per_second) + "/s"; }
  if (unit == Progress::Unit::megaflops) { return format_flops(1e6 * per_second) + "/s"; }
  return fmt::format("{:.{}f}/s", per_second, per_second < 10 ? 2 : 0);
}

// Cuts behind the last character that fits.
std::string_view fit(std::string_view text, int columns) {
  size_t end = 0;
  for (int i = 0; i < columns && end < text.size(); ++i) {
    end += static_cast<size_t>(utf8_step(text.substr(end)).length);
  }
  return text.substr(0, end);
}

std::vector<std::string> split_fields(std::string_view detail) {
  std::vector<std::string> fields;
  while (!detail.empty()) {
    const size_t comma = std::min(detail.find(", "), detail.size());
    fields.emplace_back(detail.substr(0, comma));
    detail.remove_prefix(std::min(comma + 2, detail.size()));
  }
  return fields;
}

/// What a line is made of; empty where there is nothing to say.
struct Parts {
  std::string title, bar, amount, share, rate, time;
  std::vector<std::string> fields;

  std::string text() const {
    std::string joined = title + bar + amount + share + rate + time;
    for (const std::string& field : fields) { joined += ", " + field; }
    return joined;
  }
  /// Leaves out what says least until the line fits. The first field stays: fit() cuts it.
  void shorten(int columns) {
    const auto is_long = [&] {
      const std::string line = text();
      return fit(line, columns).size() < line.size();
    };
    for (std::string* part : {&bar, &rate, &share}) {
      if (is_long()) { part->clear(); }
    }
    while (fields.size() > 1 && is_long()) { fields.pop_back(); }
  }
};

}  // namespace

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string format_flops(double flops) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y", "R"};
  size_t prefix = 0;
  while (flops >= 999.5 && prefix + 1 < std::size(kPrefixes)) {
    flops /= 1000;
    ++prefix;
  }
  const int decimals = prefix == 0 || flops >= 99.95 ? 0 : flops >= 9.995 ? 1 : 2;  // three digits
  return fmt::format("{:.{}f} {}FLOP", flops, decimals, kPrefixes[prefix]);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e12));
  const int64_t days = whole / 86400, rest = whole % 86400;
  const std::string clock = fmt::format("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
  return days > 0 ? fmt::format("{:d}d {}", days, clock) : clock;
}

TextProgress::~TextProgress() {
  if (active_ && on_screen_) {
    try {
      output_.write("\n");  // leaves the last state of an interrupted task readable
    } catch (...) {}
  }
}

void TextProgress::begin(std::string_view title, uint64_t total, Unit unit, uint64_t done) {
  whole_.reset();
  start(title, total, unit, done);
}

void TextProgress::begin_part(std::string_view title, uint64_t total, Unit unit) {
  HEBB_ASSERT(active_ && !whole_);
  whole_ = task_;
  start(title, total, unit, 0);
}

void TextProgress::start(std::string_view title, uint64_t total, Unit unit, uint64_t done) {
  drawn_ = output_.seconds();
  task_ = {.title = std::string(title), .unit = unit, .done = done, .skipped = done, .total = total, .started = drawn_};
  active_ = true;
  draw(false);
}

void TextProgress::end_part() {
  if (!whole_) { return; }
  if (!output_.is_terminal) { draw(true); }
  task_ = *whole_;
  whole_.reset();
  if (output_.is_terminal) { draw(false); }
}

void TextProgress::skip(uint64_t done) {
  task_.skipped = done;
  task_.done = std::max(task_.done, done);
}

void TextProgress::time_left(double seconds) { task_.seconds_left = seconds; }

void TextProgress::update(uint64_t done, std::string_view detail) {
  task_.done = done;
  if (detail != task_.detail) { task_.detail = detail; }
  if (output_.seconds() - drawn_ >= (output_.is_terminal ? kRedrawSeconds : output_.line_seconds)) { draw(false); }
}

void TextProgress::end() {
  if (!active_) { return; }
  if (whole_) { task_ = *whole_; }
  whole_.reset();
  draw(true);
  active_ = on_screen_ = false;
}

void TextProgress::message(std::string_view text) {
  clear();
  output_.write(std::string(text) + "\n");
  if (active_ && output_.is_terminal) { draw(false); }
}

std::string TextProgress::line(bool finished) const {
  const double elapsed = output_.seconds() - task_.started;
  const double done = static_cast<double>(task_.done);
  const bool bounded = task_.total > 0;
  const double share = bounded ? std::min(1.0, done / static_cast<double>(task_.total)) : 0;
  const double fresh = done - static_cast<double>(task_.skipped);
  Parts parts;
  parts.title = task_.title + ": ";
  parts.amount = amount(done, task_.unit);
  parts.fields = split_fields(task_.detail);
  if (bounded) {
    const int full = static_cast<int>(share * kBarCells);
    if (output_.is_terminal) { parts.bar = "[" + std::string(full, '#') + std::string(kBarCells - full, '.') + "] "; }
    parts.amount += " of " + amount(static_cast<double>(task_.total), task_.unit);
    parts.share = fmt::format(" ({}%)", static_cast<int>(share * 100));
  }
  if (elapsed > 0 && fresh > 0) { parts.rate = ", " + rate(fresh / elapsed, task_.unit); }
  if (finished) {
    parts.time = ", took " + format_duration(elapsed);
  } else if (bounded && (fresh > 0 || task_.seconds_left) && task_.done < task_.total) {
    const double by_rate = elapsed * (static_cast<double>(task_.total) - done) / fresh;
    parts.time = ", eta " + format_duration(task_.seconds_left.value_or(by_rate));
  }
  if (output_.is_terminal) { parts.shorten(output_.columns() - 1); }
  return parts.text();
}

void TextProgress::draw(bool finished) {
  drawn_ = output_.seconds();
  const std::string text = line(finished);
  if (!output_.is_terminal) { return output_.write(text + "\n"); }
  // One column stays free: a full line would scroll on some terminals.
  output_.write("\r\033[K" + std::string(fit(text, output_.columns() - 1)) + (finished ? "\n" : ""));
  on_screen_ = !finished;
}

void TextProgress::clear() {
  if (on_screen_) {
    output_.write("\r\033[K");
    on_screen_ = false;
  }
}

std::unique_ptr<Progress> stderr_progress(double line_seconds) {
  ProgressOutput output;
  output.line_seconds = line_seconds;
  output.write = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  };
  output.seconds = [start = std::chrono::steady_clock::now()] { return seconds_since(start); };
  output.columns = [] { return terminal_columns(STDERR_FILENO, kDefaultColumns); };
  const char* no_color = std::getenv("NO_COLOR");
  output.is_terminal = ::isatty(STDERR_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
  return std::make_unique<TextProgress>(std::move(output));
}

}  // namespace hebb
