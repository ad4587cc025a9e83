#include "core/utf8.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <cstring>

#include "core/error.h"
#include "core/join.h"

namespace hebb {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Length of the run of ASCII at the start, eight bytes at a time.
size_t ascii_run(const char* text, size_t size) {
  size_t n = 0;
  for (; n + 8 <= size; n += 8) {
    uint64_t word;
    std::memcpy(&word, text + n, 8);
    if ((word & 0x8080808080808080ULL) != 0) { break; }
  }
  while (n < size && static_cast<unsigned char>(text[n]) < 0x80) { ++n; }
  return n;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) { return {1, true, false}; }
  if (lead < 0xC2 || lead > 0xF4) { return {1, false, false}; }
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and what lies above U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) { return {i, false, true}; }
    const bool fits = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(i) & 0xC0) == 0x80;
    if (!fits) { return {i, false, false}; }
  }
  return {length, true, false};
}

size_t utf8_first_invalid(std::string_view text) {
  size_t at = 0;
  while (true) {
    at += ascii_run(text.data() + at, text.size() - at);
    if (at == text.size()) { return std::string_view::npos; }
    const Utf8Step step = utf8_step(text.substr(at, 4));
    if (!step.is_valid) { return at; }
    at += static_cast<size_t>(step.length);
  }
}

std::string without_byte_order_mark(std::string text) {
  if (text.starts_with(kByteOrderMark)) { text.erase(0, kByteOrderMark.size()); }
  return text;
}

std::string utf8_replace_invalid(std::string_view text, uint64_t& replaced) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const size_t bad = utf8_first_invalid(text);
    out.append(text.substr(0, bad));
    if (bad == std::string_view::npos) { return out; }
    out += kReplacement;
    ++replaced;
    text.remove_prefix(bad + static_cast<size_t>(utf8_step(text.substr(bad)).length));
  }
}

char32_t utf8_decode(std::string_view text, size_t& at) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + at;
  if (p[0] < 0x80) {
    at += 1;
    return p[0];
  }
  HEBB_ASSERT(text.size() - at >= (p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4));  // nothing behind the text is read
  if (p[0] < 0xE0) {
    at += 2;
    return static_cast<char32_t>((p[0] & 0x1F) << 6 | (p[1] & 0x3F));
  }
  if (p[0] < 0xF0) {
    at += 3;
    return static_cast<char32_t>((p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F));
  }
  at += 4;
  return static_cast<char32_t>((p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F));
}

void utf8_append(std::string& out, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

std::string hex_bytes(std::string_view bytes, size_t limit) {
  return join(bytes.substr(0, limit), " ", [](unsigned char byte) { return fmt::format("{:02X}", byte); });
}

}  // namespace hebb
