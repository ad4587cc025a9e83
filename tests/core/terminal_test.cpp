#include "core/terminal.h"

#include "tests/test.h"

TEST_CASE("lines fold between words, with an indent, and words stay whole", "[fast]") {
  CHECK(fold("one two three", 0) == "one two three");
  CHECK(fold("one two three", 13) == "one two three");
  CHECK(fold("one two three", 12) == "one two\n  three");
  CHECK(fold("  one two three", 9) == "  one two\n    three");
  CHECK(fold("  -x  one two", 11, 4) == "  -x  one\n      two");
  CHECK(fold("aaaaaaaaaaaa b", 6) == "aaaaaaaaaaaa\n  b");
  CHECK(fold("größe größe", 11) == "größe größe");
  CHECK(fold("", 5).empty());
}

TEST_CASE("a table that is wider than the terminal goes on below with its first column", "[fast]") {
  const std::vector<std::vector<std::string>> rows = {{"run", "loss", "tokens"}, {"a-long-name", "2.5", "10"}};
  CHECK(text_table(rows, 0) ==
        "run          loss  tokens\n"
        "a-long-name   2.5      10\n");
  CHECK(text_table(rows, 25) == text_table(rows, 0));
  CHECK(text_table(rows, 24) ==
        "run          loss\n"
        "a-long-name   2.5\n"
        "\n"
        "run          tokens\n"
        "a-long-name      10\n");
  CHECK(text_table(rows, 1) == text_table(rows, 24));  // a column is never cut
  CHECK(text_table({{"run"}, {"a"}}, 80) == "run\na\n");
  CHECK(text_table({{"n", "task", "reason"}, {"1", "a", "too long"}, {"10", "bc", "short"}}, 0, {1, 2}) ==
        "n   task  reason\n"
        "1   a     too long\n"
        "10  bc    short\n");
  CHECK(terminal_columns(-1, 7) == 7);
}
