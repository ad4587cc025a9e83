#pragma once
#include <cstdint>

namespace hebb {

/// What the patterns of pre-tokenizers tell apart: \p{L}, \p{N}, \s, and everything else.
enum class CharacterClass : uint8_t { other, letter, number, space };

/// Class of a code point in the Unicode version of tokenizers 0.23 (see character_class.cpp): ids must not depend on
/// the libraries of a machine.
CharacterClass character_class(char32_t c);

}  // namespace hebb
