#include "data/tokenizer/byte_characters.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/utf8.h"

namespace hebb {
namespace {

struct Table {
  Table() {
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const char32_t c = is_itself ? static_cast<char32_t>(byte) : next++;
      bytes.resize(std::max<size_t>(bytes.size(), c + 1), -1);
      bytes[c] = byte;
      characters[static_cast<size_t>(byte)] = c;
    }
  }
  std::array<char32_t, 256> characters{};
  std::vector<int> bytes;  // by character; -1: none
};

const Table& table() {
  static const Table made;
  return made;
}

}  // namespace

std::string byte_character(unsigned char byte) {
  std::string text;
  utf8_append(text, table().characters[byte]);
  return text;
}

std::optional<std::string> bytes_of_characters(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const char32_t c = utf8_decode(token, at);
    if (c >= table().bytes.size() || table().bytes[c] < 0) { return std::nullopt; }
    bytes += static_cast<char>(table().bytes[c]);
  }
  return bytes;
}

}  // namespace hebb
