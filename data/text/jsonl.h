#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hebb {

/// What one line of a JSONL file gives.
struct JsonlText {
  bool is_good = false;
  std::string text;       // if good
  uint64_t replaced = 0;  // unpaired surrogates that became U+FFFD
  size_t offset = 0;      // if bad: where in the line, and why
  std::string problem, found, expected;
};

/// Checks that `line` (valid UTF-8) is exactly one JSON object (RFC 8259, strict, at most 200 levels
/// deep) and returns its string member `field`; an empty `field` means "text" or, if there is none,
/// "content". Unpaired surrogate escapes in that string are an error, or become U+FFFD with
/// `replace_invalid`. The other members are only checked. Never throws.
JsonlText jsonl_text(std::string_view line, std::string_view field, bool replace_invalid);

}  // namespace hebb
