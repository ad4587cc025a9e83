#include "core/utf8.h"

#include "core/random.h"
#include "tests/test.h"

TEST_CASE("every Unicode scalar value is valid and survives decode and append", "[fast]") {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 37) {
    if (c >= 0xD800 && c < 0xE000) { continue; }
    std::string text;
    utf8_append(text, c);
    const Utf8Step step = utf8_step(text);
    size_t at = 0;
    const bool is_same = utf8_decode(text, at) == c && at == text.size();
    if (!step.is_valid || step.length != static_cast<int>(text.size()) || !is_same) {
      FAIL("U+" << std::hex << static_cast<uint32_t>(c));
    }
  }
}

TEST_CASE("surrogates, overlong forms, stray bytes and values above U+10FFFF are invalid", "[fast]") {
  for (const char* bytes : {"\x80", "\xBF", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                            "\xED\xBF\xBF", "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
                            "\xF5\x80\x80\x80", "\xFE", "\xFF", "\xC3(", "\xE2\x82(", "\xF0\x9F\x98("}) {
    INFO(hex_bytes(bytes));
    CHECK(utf8_first_invalid(std::string("0123456789 ") + bytes) == 11);
  }
  CHECK(utf8_first_invalid("all of it, ünï日😀") == std::string::npos);
  CHECK(utf8_first_invalid("") == std::string::npos);
}

TEST_CASE("a character that the text cuts off is told apart from a broken one", "[fast]") {
  CHECK(utf8_step("\xE2\x82").is_cut_off);
  CHECK(utf8_step("\xE2\x82").length == 2);
  CHECK(utf8_step("\xF0\x9F\x98").is_cut_off);
  CHECK_FALSE(utf8_step("\xE2(").is_cut_off);
  CHECK_FALSE(utf8_step("\xED\xA0").is_cut_off);
}

TEST_CASE("each longest invalid piece becomes one U+FFFD", "[fast]") {
  // The example of the Unicode standard, table 3-8.
  uint64_t replaced = 0;
  CHECK(utf8_replace_invalid("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", replaced) ==
        "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
        "b\xEF\xBF\xBD"
        "c\xEF\xBF\xBD\xEF\xBF\xBD"
        "d");
  CHECK(replaced == 6);
  CHECK(utf8_replace_invalid("fine", replaced) == "fine");
  CHECK(replaced == 6);
}

TEST_CASE("repaired random bytes are valid", "[fast]") {
  Rng rng(6, "utf8");
  for (int i = 0; i < 500; ++i) {
    std::string bytes(rng.below(70), '\0');
    for (char& c : bytes) { c = static_cast<char>(rng.below(3) == 0 ? rng.below(256) : 0x80 + rng.below(128)); }
    uint64_t replaced = 0;
    const std::string text = utf8_replace_invalid(bytes, replaced);
    CHECK(utf8_first_invalid(text) == std::string::npos);
    CHECK((replaced > 0) == (utf8_first_invalid(bytes) != std::string::npos));
  }
}

TEST_CASE("bytes are shown in hexadecimal", "[fast]") {
  CHECK(hex_bytes("\xFF"
                  "A") == "FF 41");
  CHECK(hex_bytes("abcdef", 2) == "61 62");
}
