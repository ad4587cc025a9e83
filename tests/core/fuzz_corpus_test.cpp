#include "tests/fuzz/corpus.h"
#include "tests/fuzz/targets.h"
#include "tests/fuzz/weights_target.h"

TEST_CASE("inputs that fuzzing found for JSON, configurations and safetensors are refused or read", "[fast]") {
  CHECK(fuzz::run_corpus("json", fuzz::json) > 100);
  CHECK(fuzz::run_corpus("config", fuzz::config) > 100);
  CHECK(fuzz::run_corpus("safetensors", fuzz::safetensors) > 100);
}

TEST_CASE("mutated indexes of weights are refused or read", "[fast]") {
  CHECK(fuzz::mutated_corpus("weights", fuzz::weights, 500) == "");
}
