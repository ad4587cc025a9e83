#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace hebb {

/// White space as data sets' own scripts take it (Python's str.isspace): Unicode spaces and separators, the
/// control characters U+0009 to U+000D and U+001C to U+001F, U+0085.
bool is_white_space(char32_t c);

/// `text` (valid UTF-8) without its leading, trailing or outer white space.
std::string_view trim_front(std::string_view text);
std::string_view trim_back(std::string_view text);
std::string_view trim(std::string_view text);

/// The words between runs of white space; none is empty.
std::vector<std::string_view> split_words(std::string_view text);

/// Number of pieces when `text` is split at its runs of white space; an empty piece before a leading and after a
/// trailing run counts (Python's len(re.split(r"\s+", text))).
size_t count_split_pieces(std::string_view text);

}  // namespace hebb
