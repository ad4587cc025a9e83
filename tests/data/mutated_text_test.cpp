// Damaged text must be refused with an error of its reader, or give valid text.
#include "tests/data/compress.h"
#include "tests/fuzz/records_target.h"
#include "tests/fuzz/text_target.h"
#include "tests/mutate.h"
#include "tests/test.h"

namespace {

const std::vector<std::string> kPieces =
    pieces_of("\n \" \\ \\ud83d \\u0000 { } [ : , \xE2\x82 \xFF " + std::string(1, '\0') + " text \x0A\x02 \x7F");

const std::string kLines =
    "{\"text\": \"one\", \"id\": \"a\"}\n{\"content\": \"zw\xC3\xB6lf \\ud83d\\ude00\"}\n\n{\"text\": \"\"}\r\n";

}  // namespace

TEST_CASE("mutated lines and files of lines are refused or give valid text", "[fast]") {
  std::vector<std::string> seeds = {kLines, R"({"id": "\ud83d", "text": "\udead", "m": [1, {"x": -0.5e9}]})"};
#if HEBB_HAVE_ZLIB
  seeds.push_back(gzip(kLines) + gzip(kLines));
#endif
#if HEBB_HAVE_ZSTD
  seeds.push_back(zstd(kLines) + zstd(kLines));
#endif
  CHECK(first_failure(fuzz::jsonl, seeds, kPieces, 1500) == "");
}

TEST_CASE("mutated tokenizer models are refused or read", "[fast]") {
  // pieces {"<unk>", 0.0, unknown}, {"ab", -1.5}; trainer {bpe, byte_fallback}; normalizer {no dummy prefix}
  const std::string model(
      "\x0A\x0E\x0A\x05<unk>\x15\0\0\0\0\x18\x02\x0A\x09\x0A\x02"
      "ab\x15\0\0\xC0\xBF\x12\x05\x18\x02\x98\x02\x01\x1A\x02\x18\0",
      38);
  const SentencePieceModel parsed = parse_sentencepiece_model(model, "m");
  REQUIRE(parsed.pieces.size() == 2);
  CHECK(parsed.pieces[0].type == SentencePieceModel::PieceType::unknown);
  CHECK(parsed.pieces[1].text == "ab");
  CHECK(parsed.pieces[1].score == -1.5F);
  CHECK(parsed.type == SentencePieceModel::Type::bpe);
  CHECK(parsed.byte_fallback);
  CHECK_FALSE(parsed.add_dummy_prefix);
  CHECK(first_failure(fuzz::sentencepiece_model, {model}, kPieces, 5000) == "");
}

TEST_CASE("mutated files of byte-level BPE are refused or read", "[fast]") {
  std::vector<std::string> seeds;
  for (const char* name : {"gpt2", "qwen2", "llama3"}) {
    Json json = parse_json_file(HEBB_TEST_DATA + "/golden/tokenizer-json/" + name + ".json");
    std::vector<Json>& merges = json.find("model")->find("merges")->items();
    merges.resize(3);
    seeds.push_back(json.dump());
    CHECK(parse_tokenizer_json(seeds.back(), name).merges.size() == 3);
  }
  CHECK(first_failure(fuzz::tokenizer_json, seeds, kPieces, 1000) == "");
}

TEST_CASE("mutated records are refused or read", "[fast]") {
  const std::vector<std::string> seeds = {
      R"({"context": "c", "choices": ["a", "b"], "gold": [1], "group": "g", "_x": 1})"
      "\n",
      R"({"prompt": "p", "answers": ["a"], "until": [], "score": "f1", "classes": ["a"], "id": "x"})"
      "\n"};
  CHECK(first_failure(fuzz::records, seeds, kPieces, 150) == "");
}
