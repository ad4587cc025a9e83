#include "data/text/white_space.h"

#include "tests/test.h"

TEST_CASE("white space is what Unicode and Python call so", "[fast]") {
  for (const char32_t c : {U'\t', U'\n', U'\v', U'\f', U'\r', U' ', U'\x1C', U'\x1F', U'\x85', U'\xA0', U'\u1680',
                           U'\u2000', U'\u200A', U'\u2028', U'\u2029', U'\u202F', U'\u205F', U'\u3000'}) {
    CHECK(is_white_space(c));
  }
  for (const char32_t c : {U'a', U'\u200B', U'\u180E', U'\uFEFF', U'\x08', U'\x1B', U'\u2060'}) {
    CHECK_FALSE(is_white_space(c));
  }
}

TEST_CASE("trimming takes whole characters off the ends", "[fast]") {
  CHECK(trim(" \u3000 a b\u00A0\n") == "a b");
  CHECK(trim_front("\u2003é ") == "é ");
  CHECK(trim_back(" é\u2003") == " é");
  CHECK(trim(" \t\n").empty());
  CHECK(trim("").empty());
  CHECK(trim("é") == "é");
}

TEST_CASE("words have no white space, and empty pieces count where a text is split", "[fast]") {
  CHECK(split_words("  two  words\n") == std::vector<std::string_view>{"two", "words"});
  CHECK(split_words("one") == std::vector<std::string_view>{"one"});
  CHECK(split_words(" ").empty());
  CHECK(split_words("").empty());
  // Counts of Python's re.split(r"\s+", text).
  CHECK(count_split_pieces("  two  words\n") == 4);
  CHECK(count_split_pieces("one") == 1);
  CHECK(count_split_pieces(" ") == 2);
  CHECK(count_split_pieces("") == 1);
  CHECK(count_split_pieces("a\u00A0b") == 2);
}
