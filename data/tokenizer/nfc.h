#pragma once
#include <string>
#include <string_view>

namespace hebb {

/// Composes `text` (valid UTF-8) to Unicode's normal form C, as the library tokenizers does: with the characters of
/// Unicode 9, so that later marks stay where they are. Returns `text` itself where nothing can change, else `scratch`.
std::string_view compose_nfc(std::string_view text, std::string& scratch);

}  // namespace hebb
