#include "data/text/characters.h"

#include <utf8proc.h>

#include <algorithm>

#include "core/utf8.h"

namespace hebb {

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !is_utf8_continuation(byte); });
}

std::string_view first_characters(std::string_view text, int64_t count) {
  size_t at = 0;
  for (int64_t i = 0; i < count && at < text.size(); ++i) { utf8_decode(text, at); }
  return text.substr(0, at);
}

bool is_word_character(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
  return is_letter || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) || c == '_';
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8_append(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(utf8_decode(text, at)))));
  }
  return result;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string fill_template(std::string_view text, const Placeholders& values) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '{' ? text.find('}', at) : std::string_view::npos;
    const std::string_view name = end == std::string_view::npos ? "" : text.substr(at + 1, end - at - 1);
    const auto value =
        std::find_if(values.begin(), values.end(), [&](const auto& v) { return !name.empty() && v.first == name; });
    if (value == values.end()) {
      result += text[at++];
    } else {
      result += value->second;
      at = end + 1;
    }
  }
  return result;
}

}  // namespace hebb
