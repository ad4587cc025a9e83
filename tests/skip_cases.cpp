// The program that tests/check_skips.py runs.
#include "tests/skip.h"

#include "tests/test.h"

TEST_CASE("a skipped case: whole", "[skips][whole]") {
  const int part = GENERATE(1, 2);
  if (part > 0) { skip_case("no such thing"); }
}

TEST_CASE("a case that is skipped in a part", "[skips][part]") {
  skip_case("no such thing");
  CHECK(true);
}

TEST_CASE("a case that runs", "[skips]") { CHECK(true); }

TEST_CASE("a case that fails", "[fails]") { FAIL("as it should"); }
