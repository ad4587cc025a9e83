#include "tests/fuzz/corpus.h"
#include "tests/fuzz/study_target.h"

TEST_CASE("mutated configurations, of runs, foreign models and sweeps, are refused or read", "[fast]") {
  CHECK(fuzz::mutated_corpus("run", fuzz::run, 500) == "");
  CHECK(fuzz::mutated_corpus("model", fuzz::model, 300) == "");
  CHECK(fuzz::mutated_corpus("sweep", fuzz::sweep, 300) == "");
  CHECK(fuzz::mutated_corpus("expression", fuzz::expression, 1000) == "");
}

TEST_CASE("mutated files of runs and ladders are refused or read", "[fast]") {
  CHECK(fuzz::mutated_corpus("metrics", fuzz::metrics, 500) == "");
  CHECK(fuzz::mutated_corpus("state", fuzz::state, 500) == "");
  CHECK(fuzz::mutated_corpus("journal", fuzz::journal, 500) == "");
  CHECK(fuzz::mutated_corpus("ladder", fuzz::ladder, 500) == "");
  CHECK(fuzz::mutated_corpus("results", fuzz::results, 500) == "");
}
