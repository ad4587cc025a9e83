#include "train/run_log.h"

#include <algorithm>

namespace hebb {

void RunLog::open(const fs::path& path) {
  file_ = std::make_unique<AppendFile>(path);
  file_->append(early_);
  early_.clear();
}

void RunLog::say(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (console_.line) { console_.line(line); }
    if (file_) {
      file_->append(line + "\n");
    } else {
      early_ += line + "\n";
    }
  }
}

void RunLog::keep(std::string_view line) noexcept {
  try {
    if (file_) { file_->append(std::string(line) + "\n"); }
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
  if (file_) { file_->append(std::string(line) + "\n"); }
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
