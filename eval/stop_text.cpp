#include "eval/stop_text.h"

#include <algorithm>

namespace hebb {

bool StopText::push(std::string_view more) {
  const size_t before = text_.size();
  text_ += more;
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_) {
    cut = std::min(cut, text_.find(stop, before - std::min(before, stop.size() - 1)));
  }
  is_cut_ = is_cut_ || cut != std::string::npos;
  text_.resize(std::min(cut, text_.size()));
  return !is_cut_;
}

size_t StopText::settled() const {
  size_t open = 0;  // the longest end of the text that one of the strings begins with
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(text_.size(), stop.size() - 1); n > open; --n) {
      if (text_.ends_with(std::string_view(stop).substr(0, n))) {
        open = n;
        break;
      }
    }
  }
  return text_.size() - (is_cut_ ? 0 : open);
}

}  // namespace hebb
