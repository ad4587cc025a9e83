#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace hebb {

/// The character that stands for a byte in byte-level BPE: a printable one of Latin-1 for itself, the others moved up
/// behind 255.
std::string byte_character(unsigned char byte);

/// The bytes of a token of such characters; nothing where one of them stands for none: it never comes from text.
std::optional<std::string> bytes_of_characters(std::string_view token);

}  // namespace hebb
