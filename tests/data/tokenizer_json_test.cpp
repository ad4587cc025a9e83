#include "data/tokenizer/tokenizer_json.h"

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/text_samples.h"
#include "tests/paths.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

std::string golden(const std::string& name) { return HEBB_TEST_DATA + "/golden/tokenizer-json/" + name + ".json"; }

std::shared_ptr<const Tokenizer> load(const std::string& file) {
  return Tokenizer::load({"huggingface", file, false, false});
}

std::vector<int32_t> int_list(const Json& json) {
  std::vector<int32_t> values;
  for (const Json& item : json.items()) { values.push_back(static_cast<int32_t>(item.as_int())); }
  return values;
}

}  // namespace

// The files, texts and ids are those of the library (tests/reference/tokenizer_json.py).
TEST_CASE("ids and decoded text of a tokenizer.json are those of the library tokenizers", "[fast]") {
  const Json cases = parse_json_file(golden("cases"));
  const std::vector<Json>& texts = cases.at("texts").items();
  REQUIRE(texts.size() > 50);
  REQUIRE(cases.at("tokenizers").members().size() == 11);
  for (const auto& [name, expected] : cases.at("tokenizers").members()) {
    const auto tokenizer = load(golden(name));
    Tokenizer::Encoder encoder(tokenizer);
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO(name << ", text " << i);
      std::vector<int32_t> ids;
      encoder.encode(texts[i].as_string(), ids);
      CHECK(ids == int_list(expected.at("ids").items()[i]));
      const Json& decoded = expected.at("decoded").items()[i];
      CHECK((decoded.is_null() || tokenizer->decode(ids) == decoded.as_string()));
      Tokenizer::Decoder decoder(tokenizer);
      std::string joined;
      for (const int32_t id : ids) {
        joined += decoder.push(id);
        CHECK(utf8_first_invalid(joined) == std::string::npos);
      }
      CHECK(joined + decoder.finish() == tokenizer->decode(ids));
    }
  }
}

TEST_CASE("decoding gives any text back where nothing is normalised", "[fast]") {
  for (const char* name : {"gpt2", "llama3", "cl100k", "words"}) {
    const auto tokenizer = load(golden(name));
    Rng rng(8, name);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(rng);
      int64_t bytes = 0;
      const std::vector<int32_t> ids = tokenizer->encode(text);
      for (const int32_t id : ids) { bytes += tokenizer->text_bytes(id); }
      REQUIRE(tokenizer->decode(ids) == text);
      REQUIRE(bytes == static_cast<int64_t>(text.size()));
    }
    CHECK_FALSE(tokenizer->loses_visible_space());
  }
}

TEST_CASE("words around the size of the cache and very long ones are merged alike", "[fast]") {
  const auto tokenizer = load(golden("gpt2"));
  Tokenizer::Encoder warm(tokenizer);
  std::string word;
  for (int length = 1; length < 60; ++length) {
    word += static_cast<char>('a' + length * 7 % 26);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<int32_t> ids;
      warm.encode(word, ids);
      CHECK(ids == tokenizer->encode(word));
      CHECK(tokenizer->decode(ids) == word);
    }
  }
  const std::string long_word(200000, 'x');
  CHECK(tokenizer->decode(tokenizer->encode(long_word)) == long_word);
}

TEST_CASE("a cut character decodes to one U+FFFD, also across special tokens", "[fast]") {
  const auto tokenizer = load(golden("llama3"));
  const std::vector<int32_t> ids = tokenizer->encode("\xF3\xB5\xA5\xB5");  // no merges reach it
  REQUIRE(ids.size() == 4);
  CHECK(tokenizer->decode(std::vector<int32_t>{ids[0], ids[1], ids[2]}) == "\xEF\xBF\xBD");
  CHECK(tokenizer->decode(std::vector<int32_t>{ids[3], ids[3]}) == "\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(tokenizer->decode(std::vector<int32_t>{ids[0], ids[1], tokenizer->special().eos, ids[2], ids[3]}) ==
        "\xF3\xB5\xA5\xB5");
}

TEST_CASE("BOS, EOS and PAD of a tokenizer.json are special tokens of well-known names", "[fast]") {
  const auto special = [](const char* name) { return load(golden(name))->special(); };
  CHECK(special("gpt2").bos == 0);
  CHECK(special("gpt2").eos == 0);
  CHECK(special("gpt2").pad == -1);
  CHECK(special("llama3").bos == 700);
  CHECK(special("llama3").eos == 701);
  CHECK(special("llama3").pad == 702);
  const auto space = load(golden("space"));
  CHECK(space->special().bos == space->encode("<s>")[0]);
  CHECK(space->special().eos == space->encode("</s>")[0]);
  CHECK(space->special().pad == space->encode("<pad>")[0]);
  CHECK(space->text_bytes(space->special().eos) == 0);
  CHECK(space->decode(space->encode("<s></s><pad>")).empty());

  const TempFolder folder;
  Json json = parse_json_file(golden("words"));
  json.find("added_tokens")->items()[0].set("content", "<|other|>");
  const std::string file = folder.write("t.json", json.dump()).string();
  CHECK_THROWS_WITH(Tokenizer::load({"huggingface", file, false, true}),
                    "tokenizer.add_eos: found true, expected false, as " + file + " has no EOS");
}

FOLDER_TEST("the type of a tokenizer follows from its name or its first byte", "[fast]") {
  CHECK(tokenizer_named("bytes").type == "bytes");
  CHECK(tokenizer_named("missing.json").type == "huggingface");
  CHECK(tokenizer_named("missing.model").type == "sentencepiece");
  CHECK(tokenizer_named(folder.write("t.model", "{}").string()).type == "huggingface");
  CHECK(tokenizer_copy_name(tokenizer_named("bytes")) == "tokenizer.model");
  CHECK(tokenizer_copy_name(tokenizer_named("x.json")) == "tokenizer.json");
  CHECK_THROWS_WITH(Tokenizer::load({"huggingface", "", false, false}),
                    "tokenizer.file: found nothing, expected a tokenizer.json file");
}

TEST_CASE("what would change ids and is not supported is an error that names the key", "[fast]") {
  struct Case {
    const char *file, *path, *value, *message;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"gpt2", "truncation", R"({"max_length": 5})", "truncation (found an object, expected null)"},
           {"gpt2", "padding", "1", "padding (found 1, expected null)"},
           {"gpt2", "future", "1", "future (found 1, expected no such key, as its effect on ids is not known)"},
           {"gpt2", "model.type", "\"Unigram\"", "model.type (found \"Unigram\", expected \"BPE\", over bytes"},
           {"gpt2", "model", R"({"type": "BPE", "byte_fallback": true, "vocab": {"<0x00>": 0}, "merges": []})",
            "found true, the BPE of a SentencePiece model, expected its file tokenizer.model in place of this one"},
           {"gpt2", "model", R"({"type": "Unigram", "vocab": []})",
            "of a SentencePiece model give the file tokenizer.model"},
           {"gpt2", "model", R"({"type": "WordPiece", "max_input_chars_per_word": 100})",
            "model.type (found \"WordPiece\""},
           {"digits", "pre_tokenizer.pretokenizers.0.individual_digits", "false", "expected true)"},
           {"digits", "pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "expected false after Digits)"},
           {"digits", "pre_tokenizer.pretokenizers.1.use_regex", "false", "expected true after Digits)"},
           {"gpt2", "model.dropout", "0.1", "model.dropout (found 0.1, expected null)"},
           {"gpt2", "model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix (found \"</w>\""},
           {"gpt2", "model.vocab.A", "66", "model.vocab (found id 66 twice, expected an id for each token)"},
           {"gpt2", "model.vocab.A", "1048576", "model.vocab (found 1048576, expected an id from 0 to 1048575)"},
           {"gpt2", "model.vocab.A", "-1", "model.vocab (found -1, expected an id"},
           {"gpt2", "model.merges.0", "\"a b c\"", "model.merges.0 (found \"a b c\", expected two tokens"},
           {"gpt2", "model.merges.0", "\"a ~~~\"", "model.merges.0 (found \"~~~\", expected a token of model.vocab)"},
           {"gpt2", "model.merges.0", "[\"a\"]", "model.merges.0 (found an array, expected"},
           {"gpt2", "normalizer", R"({"type": "NFKC"})", "normalizer.type (found \"NFKC\", expected \"NFC\""},
           {"qwen2", "normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})",
            "normalizer.normalizers.0.type (found \"Lowercase\""},
           {"gpt2", "pre_tokenizer", "null", "pre_tokenizer (found nothing, expected ByteLevel"},
           {"gpt2", "pre_tokenizer.type", "\"Metaspace\"", "pre_tokenizer.type (found \"Metaspace\""},
           {"qwen2", "pre_tokenizer.pretokenizers.0.pattern", R"({"Regex": "\\w+"})",
            "pre_tokenizer.pretokenizers.0.pattern.Regex (found \"\\w+\", expected the regular expression of"},
           {"qwen2", "pre_tokenizer.pretokenizers.0.pattern", R"({"String": "a"})", "(found no key \"Regex\""},
           {"qwen2", "pre_tokenizer.pretokenizers.0.behavior", "\"MergedWithNext\"",
            "behavior (found \"MergedWithNext\", expected \"Isolated\""},
           {"qwen2", "pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "expected false after a Split)"},
           {"qwen2", "pre_tokenizer.pretokenizers.1.use_regex", "true", "expected false after a Split)"},
           {"gpt2", "decoder.type", "\"Metaspace\"", "decoder (found an object, expected ByteLevel)"},
           {"gpt2", "added_tokens.0.single_word", "true", "added_tokens.0.single_word (found true, expected false"},
           {"gpt2", "added_tokens.0.id", "7", "added_tokens.0.id (found 7, expected 0, the id in model.vocab)"},
           {"llama3", "added_tokens.0.id", "7", "added_tokens.0.id (found 7, expected 700, the next free id)"},
           {"llama3", "added_tokens.1.content", "\"<|begin_of_text|>\"", "expected a token that is added once)"}}) {
    Json json = parse_json_file(golden(c.file));
    const Json value = parse_json(c.value, "");
    if (value.is_null()) {
      json.set(c.path, value);  // set_path() would delete the key
    } else {
      set_path(json, c.path, value);
    }
    CHECK_THROWS_WITH(parse_tokenizer_json(json.dump(), "t.json"), Contains("t.json") && Contains(c.message));
    CHECK_THROWS_AS(parse_tokenizer_json(json.dump(), "t.json"), DataError);
  }
  Json json = parse_json_file(golden("gpt2"));
  json.find("model")->find("vocab")->erase("A");
  CHECK_THROWS_WITH(parse_tokenizer_json(json.dump(), "t.json"), Contains("found no token for byte 65"));
}

TEST_CASE("a damaged tokenizer.json is a data error with its place", "[fast]") {
  const std::string text = read_file(golden("gpt2"));
  CHECK_THROWS_WITH(parse_tokenizer_json(text.substr(0, text.size() / 2), "cut.json"),
                    Catch::Matchers::StartsWith("not a tokenizer.json: cut.json:1:"));
  CHECK_THROWS_AS(parse_tokenizer_json("", "empty.json"), DataError);
  CHECK_THROWS_WITH(parse_tokenizer_json("[1]", "t.json"),
                    "t.json:1:1: not a tokenizer.json (found [1], expected an object)");
  CHECK_THROWS_WITH(
      parse_tokenizer_json(R"({"config": {"pattern": "x"}, "vocab": []})", "tekken.json"),
      "tekken.json:1:1: not a tokenizer.json (found a file of Mistral's tekken, expected the tokenizer.json "
      "of the same model)");
  CHECK_THROWS_WITH(parse_tokenizer_json("{}", "t.json"),
                    "t.json:1:1: not a tokenizer.json (found no key \"model\", expected one)");
}
