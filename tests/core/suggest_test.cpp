#include "core/suggest.h"

#include "tests/test.h"

TEST_CASE("edit distance counts insertions, deletions, replacements and swaps", "[fast]") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("train", "train") == 0);
  CHECK(edit_distance("tarin", "train") == 1);
  CHECK(edit_distance("trn", "train") == 2);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("the nearest name is suggested only when it is a plausible slip", "[fast]") {
  const std::vector<std::string> names = {"train", "eval", "plan"};
  CHECK(nearest_name("trian", names) == "train");
  CHECK(nearest_name("evl", names) == "eval");
  CHECK(nearest_name("quantum", names) == "");
  CHECK(nearest_name("gpu", {"auto", "cpu", "cuda"}) == "");  // another word
  CHECK(nearest_name("gdm", {"ham", "gdn", "sdm"}) == "gdn");
  CHECK(nearest_name("train", {}) == "");
}
