#include "train/run_log.h"

#include <algorithm>

namespace hebb {

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
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (console_.line) { console_.line(line); }
    write(level, line);
  }
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

void RunLog::step(std::string_view line, int64_t step, std::string_view detail) {
  if (console_.bar == nullptr) {
    say(line);
    return;
  }
  detail_ = detail;
  update_bar(step);
  write(LogLevel::info, line);
}

void RunLog::begin_bar(std::string_view title, int64_t total, int64_t done) {
  detail_.clear();
  if (console_.bar != nullptr) {
    console_.bar->begin(title, static_cast<uint64_t>(total), Progress::Unit::count, static_cast<uint64_t>(done));
  }
}

void RunLog::update_bar(int64_t done) {
  if (console_.bar != nullptr) { console_.bar->update(static_cast<uint64_t>(done), detail_); }
}

void RunLog::end_bar() {
  if (console_.bar != nullptr) { console_.bar->end(); }
}

}  // namespace hebb
