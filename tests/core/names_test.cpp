#include "core/names.h"

#include "core/error.h"
#include "tests/test.h"

TEST_CASE("control characters and bytes that are no text are escaped for people", "[fast]") {
  using namespace std::string_literals;
  CHECK(printable("plain, ünï日😀") == "plain, ünï日😀");
  CHECK(printable("\x1b[31m\r\n\t\x7f"s + '\0') == "\\x1b[31m\\x0d\\x0a\\x09\\x7f\\x00");
  CHECK(printable("a\n\tb\r", true) == "a\n\tb\\x0d");
  CHECK(printable("\xC2\x9B"
                  "2J\xC2\xA0") == "\\xc2\\x9b2J\xC2\xA0");
  CHECK(printable("\xFFz\xC3") == "\\xffz\\xc3");
  CHECK(is_printable("ünï日😀"));
  CHECK(is_printable(""));
  for (const std::string& text : {"a\0b"s, "\x1b"s, "\n"s, "\x7f"s, "\xC2\x85"s, "\xFF"s}) {
    INFO(printable(text));
    CHECK_FALSE(is_printable(text));
  }
}

TEST_CASE("a message of an error is whole and steers no terminal", "[fast]") {
  using namespace std::string_literals;
  CHECK(ConfigError("a\0b"s, "\x1b[2J\nnext").what() == "a\\x00b: \\x1b[2J\nnext"s);
}

TEST_CASE("names of files are printable and stay in their folder", "[fast]") {
  for (const char* name : {"a", "lr=0.1 é", "-x", "...", "a.b"}) { CHECK(is_file_name(name)); }
  for (const char* name : {"", ".", "..", "a/b", "a\\b", "a\nb", "a\x1b[0m", "\xFF"}) {
    CHECK_FALSE(is_file_name(name));
  }
}
