#pragma once
#include <string>
#include <string_view>

namespace hebb {

/// Valid UTF-8 without control characters (U+0000 to U+001F, U+007F to U+009F) and U+FFFE, U+FFFF.
bool is_printable(std::string_view text);

/// Text of others for people to read: control characters and bytes that are not UTF-8 become "\x1b". Line breaks and
/// tabulators stay where `keeps_lines`.
std::string printable(std::string_view text, bool keeps_lines = false);

/// A printable name that a file or folder can have: not empty, "." or "..", without / and backslash,
/// at most 255 bytes.
bool is_file_name(std::string_view name);

}  // namespace hebb
