#include "data/text/white_space.h"

#include "core/utf8.h"

namespace hebb {
namespace {

/// Calls run(begin, end) for each run of white space, in order.
template <class Run> void each_run(std::string_view text, const Run& run) {
  size_t begin = 0;
  bool is_inside = false;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const bool is_space = is_white_space(utf8_decode(text, at));
    if (is_space != is_inside) {
      if (is_inside) { run(begin, here); }
      begin = here;
      is_inside = is_space;
    }
  }
  if (is_inside) { run(begin, text.size()); }
}

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view trim_front(std::string_view text) {
  size_t begin = 0;
  for (size_t at = 0; begin < text.size() && is_white_space(utf8_decode(text, at)); begin = at) {}
  return text.substr(begin);
}

std::string_view trim_back(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && is_utf8_continuation(text[last])) { --last; }
    size_t at = last;
    if (!is_white_space(utf8_decode(text, at))) { break; }
    text.remove_suffix(text.size() - last);
  }
  return text;
}

std::string_view trim(std::string_view text) { return trim_front(trim_back(text)); }

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t from = 0;
  const auto add = [&](size_t to) {
    if (to > from) { words.push_back(text.substr(from, to - from)); }
  };
  each_run(text, [&](size_t begin, size_t end) {
    add(begin);
    from = end;
  });
  add(text.size());
  return words;
}

size_t count_split_pieces(std::string_view text) {
  size_t pieces = 1;
  each_run(text, [&](size_t, size_t) { ++pieces; });
  return pieces;
}

}  // namespace hebb
