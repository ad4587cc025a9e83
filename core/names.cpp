#include "core/names.h"

#include <fmt/core.h>

#include "core/utf8.h"

namespace hebb {
namespace {

constexpr size_t kLongestName = 255;  // bytes: NAME_MAX of Linux

/// Calls each(piece, whether it is printable) for the characters of a text, and for its bytes that are none.
template <class Each> void each_character(std::string_view text, const Each& each) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const std::string_view piece = text.substr(0, step.is_valid ? static_cast<size_t>(step.length) : 1);
    const auto first = static_cast<unsigned char>(piece[0]);
    const bool is_c1 = piece.size() == 2 && first == 0xC2 && static_cast<unsigned char>(piece[1]) < 0xA0;
    const bool is_no_character = piece == "\xEF\xBF\xBE" || piece == "\xEF\xBF\xBF";
    each(piece, step.is_valid && first >= 0x20 && first != 0x7F && !is_c1 && !is_no_character);
    text.remove_prefix(piece.size());
  }
}

}  // namespace

bool is_printable(std::string_view text) {
  bool all = true;
  each_character(text, [&](std::string_view, bool is_shown) { all &= is_shown; });
  return all;
}

std::string printable(std::string_view text, bool keeps_lines) {
  std::string out;
  each_character(text, [&](std::string_view piece, bool is_shown) {
    if (is_shown || (keeps_lines && (piece == "\n" || piece == "\t"))) {
      out += piece;
    } else {
      for (const char byte : piece) { out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte)); }
    }
  });
  return out;
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string_view::npos && is_printable(name);
}

}  // namespace hebb
