#include "tests/fuzz/corpus.h"
#include "tests/fuzz/serve_target.h"

TEST_CASE("mutated bodies of requests are refused or answered", "[fast]") {
  CHECK(fuzz::mutated_corpus("request", fuzz::request, 2000) == "");
}
