#include "train/run_log.h"

#include <algorithm>

namespace hebb {
namespace {

template <class Take> void each_line(std::string_view text, Take&& take) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    take(line);
  }
}

}  // namespace

void RunLog::open(const fs::path& path, int64_t rank) {
  file_ = std::make_unique<LogFile>(path, rank);
  for (const auto& [level, line] : early_) { file_->line(level, line); }
  early_.clear();
}

void RunLog::write(LogLevel level, std::string_view line) {
  if (file_) {
    file_->line(level, line);
  } else {
    early_.emplace_back(level, line);
  }
}

void RunLog::say(std::string_view text, LogLevel level) {
  each_line(text, [&](std::string_view line) {
    if (console_.line) { console_.line(line); }
    write(level, line);
  });
}

void RunLog::say_in_brief(std::string_view text, std::string_view brief) {
  each_line(text, [&](std::string_view line) { write(LogLevel::info, line); });
  if (console_.line) { each_line(brief, console_.line); }
}

void RunLog::warn(std::string_view line) {
  if (console_.line) { console_.line("warning: " + std::string(line)); }
  write(LogLevel::warning, line);
}

void RunLog::sync() {
  if (!file_) { return; }
  if (const std::string what = file_->sync(); !what.empty()) {
    warn(what);
    file_->sync();
  }
}

void RunLog::error(std::string_view line) noexcept {
  try {
    if (file_) { file_->line(LogLevel::error, line); }
  } catch (const std::exception&) {
    // The error that ends the run is what its user must see.
  }
}

void RunLog::step(std::string_view line, std::string_view detail) {
  if (console_.bar == nullptr) {
    say(line);
    return;
  }
  detail_ = detail;
  write(LogLevel::info, line);
}

void RunLog::begin_bar(std::string_view title, int64_t total, int64_t done) {
  detail_.clear();
  if (console_.bar != nullptr) {
    console_.bar->begin(title, static_cast<uint64_t>(total), Progress::Unit::count, static_cast<uint64_t>(done));
  }
}

void RunLog::begin_part(std::string_view title, int64_t total) {
  if (console_.bar != nullptr) { console_.bar->begin_part(title, static_cast<uint64_t>(total)); }
}

void RunLog::update_part(int64_t done) {
  if (console_.bar != nullptr) { console_.bar->update(static_cast<uint64_t>(done)); }
}

void RunLog::end_part() {
  if (console_.bar != nullptr) { console_.bar->end_part(); }
}

void RunLog::update_bar(int64_t done, double seconds_left) {
  if (console_.bar == nullptr) { return; }
  console_.bar->time_left(seconds_left);
  console_.bar->update(static_cast<uint64_t>(done), detail_);
}

void RunLog::end_bar() {
  if (console_.bar != nullptr) { console_.bar->end(); }
}

}  // namespace hebb
