#include "study/report/name_pattern.h"

#include "tests/test.h"

namespace {

bool fits(const std::string& pattern, const std::string& name) { return NamePattern(pattern).matches(name); }

/// "tag=value " for each tag of a name; "no" where it does not match.
std::string tags(const std::string& pattern, const std::string& name) {
  std::vector<std::pair<std::string, std::string>> found;
  if (!NamePattern(pattern, NamePattern::Tags::named).matches(name, &found)) { return "no"; }
  std::string text;
  for (const auto& [tag, value] : found) { text += tag + "=" + value + " "; }
  return text;
}

}  // namespace

TEST_CASE("a pattern of names has any text, one character, classes and tags", "[fast]") {
  CHECK(fits("*", ""));
  CHECK(fits("a*c", "abbc"));
  CHECK(fits("a**c", "ac"));
  CHECK_FALSE(fits("a*c", "abcd"));
  CHECK(fits("a?c", "abc"));
  CHECK_FALSE(fits("a?c", "ac"));
  CHECK(fits("L[1-36]", "L6"));
  CHECK_FALSE(fits("L[1-36]", "L4"));
  CHECK(fits("L[!1-3]", "L4"));
  CHECK_FALSE(fits("L[!1-3]", "L2"));
  CHECK(fits("a[-]b", "a-b"));
  CHECK(fits("a[", "a["));
  CHECK(fits("a.b+c", "a.b+c"));
  CHECK_FALSE(fits("a.b", "axb"));
  CHECK(fits("{x}", "{x}"));
  CHECK(tags("L{level}-{arch}.json", "L12-gdn.json") == "level=12 arch=gdn ");
  CHECK(tags("L{level}-{arch}.json", "L12-gdn-long.json") == "no");
  CHECK(tags("{a}{b}", "xyz") == "a=xy b=z ");
  CHECK(tags("{a}-*", "-x") == "no");
}

TEST_CASE("a pattern takes no time that grows with the power of its stars", "[fast]") {
  const std::string name(255, 'a');
  std::string stars, tagged;
  for (int i = 0; i < 60; ++i) { stars += "*a"; }
  for (int i = 0; i < 60; ++i) { tagged += "{t}"; }
  CHECK_FALSE(fits(stars + "b", name));
  CHECK_FALSE(fits(std::string(60, '*') + "q.json", name));
  CHECK(tags(tagged + "b", name) == "no");
  CHECK_FALSE(fits(std::string(1000000, '?'), name));
}
