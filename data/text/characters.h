#pragma once
// Characters of UTF-8 text: what evaluations count, cut, compare and put together.
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/join.h"

namespace hebb {

// Texts must be valid UTF-8.

/// Number of code points.
int64_t count_characters(std::string_view text);
/// The first `count` code points, or all where there are fewer.
std::string_view first_characters(std::string_view text, int64_t count);
/// A letter, a digit, another number or "_" (what \\w matches in Python).
bool is_word_character(char32_t c);
/// Lower case, one code point for one (Unicode's simple mapping).
std::string lower_case(std::string_view text);
/// `text` with every `from` replaced, from left to right.
std::string replace_all(std::string text, std::string_view from, std::string_view to);
/// Puts values in the place of "{name}", in one pass: braces inside values, and around other names, stay.
using Placeholders = std::vector<std::pair<std::string_view, std::string_view>>;
std::string fill_template(std::string_view text, const Placeholders& values);

}  // namespace hebb
