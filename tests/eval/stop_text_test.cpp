// Text that ends before a string.
#include "eval/stop_text.h"

#include "tests/test.h"

TEST_CASE("text is cut before the first of its ends, also one that comes in pieces", "[fast]") {
  StopText text({"END", "N."});
  CHECK(text.push("an E"));
  CHECK(text.text() == "an E");
  CHECK(text.settled() == 3);  // "E" may begin an end
  CHECK(text.push("N"));
  CHECK(text.settled() == 3);
  CHECK(text.push("E"));
  CHECK(text.text() == "an ENE");
  CHECK(text.settled() == 5);
  CHECK_FALSE(text.push("ND and more N."));
  CHECK(text.is_cut());
  CHECK(text.text() == "an EN");
  CHECK(text.settled() == 5);
}

TEST_CASE("without ends all text is settled", "[fast]") {
  StopText text({});
  CHECK(text.push("abc"));
  CHECK(text.settled() == 3);
  CHECK_FALSE(text.is_cut());
}
