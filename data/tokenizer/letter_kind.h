#pragma once
#include <cstdint>

#include "data/tokenizer/character_class.h"

namespace hebb {

/// What patterns tell apart beyond CharacterClass: \p{Lu} and \p{Lt}; \p{Ll}; other letters; \p{M}.
enum class LetterKind : uint8_t { none, upper, lower, uncased, mark };

/// Kind of a code point in the Unicode version of tokenizers 0.23.
LetterKind letter_kind(char32_t c);

}  // namespace hebb
