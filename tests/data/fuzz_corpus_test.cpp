#include "tests/fuzz/corpus.h"
#include "tests/fuzz/records_target.h"
#include "tests/fuzz/shard_target.h"
#include "tests/fuzz/text_target.h"

TEST_CASE("inputs that fuzzing found for shards, text, records and tokenizer models are refused or read", "[fast]") {
  int accepted = 0;
  CHECK(fuzz::run_corpus("shard", [&](std::string_view input) { accepted += fuzz::shard(input) ? 1 : 0; }) > 100);
  CHECK(accepted > 10);
  CHECK(fuzz::run_corpus("jsonl", fuzz::jsonl) > 100);
  CHECK(fuzz::run_corpus("records", fuzz::records) > 100);
  CHECK(fuzz::run_corpus("tokenizer", fuzz::tokenizer) > 50);
}

TEST_CASE("mutated folders of data sets and tokenizers are refused or read", "[fast]") {
  CHECK(fuzz::mutated_corpus("dataset", fuzz::dataset, 500) == "");
  CHECK(fuzz::mutated_corpus("encode", fuzz::encode, 100) == "");
}
