#include "tests/fuzz/comm_target.h"
#include "tests/fuzz/corpus.h"

TEST_CASE("mutated messages between ranks are refused or read", "[fast]") {
  CHECK(fuzz::mutated_corpus("frames", fuzz::frames, 3000) == "");
  CHECK(fuzz::mutated_corpus("rendezvous", fuzz::rendezvous, 500) == "");
}
