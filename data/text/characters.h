#pragma once
// Characters of UTF-8 text: what evaluations count, cut, compare and put together.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hebb {

// Texts must be valid UTF-8.

/// Number of code points.
int64_t count_characters(std::string_view text);
/// The first `count` code points, or all where there are fewer.
std::string_view first_characters(std::string_view text, int64_t count);
/// Lower case, one code point for one (Unicode's simple mapping).
std::string lower_case(std::string_view text);
/// Puts values in the place of "{name}", in one pass: braces inside values, and around other names, stay.
using Placeholders = std::vector<std::pair<std::string_view, std::string_view>>;
std::string fill_template(std::string_view text, const Placeholders& values);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace hebb
