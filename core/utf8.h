#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hebb {

/// U+FEFF, with which some editors begin a file: not part of its text there.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// What stands at the start of some bytes.
struct Utf8Step {
  int length = 0;  // bytes of the character, or of the longest invalid piece that one U+FFFD replaces
  bool is_valid = false;
  bool is_cut_off = false;  // invalid only because the bytes end here
};
/// Looks at the first character of `text` (not empty). Strict: no surrogates, no overlong forms, at
/// most U+10FFFF.
Utf8Step utf8_step(std::string_view text);

/// Whether a byte of valid text stands behind the first byte of its character.
constexpr bool is_utf8_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Offset of the first byte that belongs to no valid character, or npos.
size_t utf8_first_invalid(std::string_view text);

/// The text of a file: without the mark that it may begin with.
std::string without_byte_order_mark(std::string text);

/// Every longest invalid piece becomes one U+FFFD (the Unicode standard's practice); adds their
/// number to `replaced`.
std::string utf8_replace_invalid(std::string_view text, uint64_t& replaced);

/// The character at `text[at]`, which must be valid; advances `at`.
char32_t utf8_decode(std::string_view text, size_t& at);
void utf8_append(std::string& out, char32_t c);

/// Bytes in hexadecimal for messages: "FF 41" (at most `limit`).
std::string hex_bytes(std::string_view bytes, size_t limit = 4);

}  // namespace hebb
