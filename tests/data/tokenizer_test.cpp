#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "data/shards/ingest.h"
#include "data/text/characters.h"
#include "data/tokenizer/bpe_encoder.h"
#include "tests/data/text_samples.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

TEST_CASE("the byte tokenizer maps bytes to their values", "[fast]") {
  const auto bytes = Tokenizer::load({"bytes", "", true, true});
  CHECK(bytes->vocab_size() == 259);
  CHECK(bytes->special().bos == 256);
  CHECK(bytes->special().eos == 257);
  CHECK(bytes->special().pad == 258);
  CHECK(bytes->hash() == fnv1a64("bytes"));
  CHECK(bytes->model_bytes().empty());
  CHECK(bytes->encoder_name() == "bytes");
  CHECK(bytes->encode("aé\n") == std::vector<int32_t>{97, 0xC3, 0xA9, 10});
  CHECK(bytes->decode(std::vector<int32_t>{256, 97, 0xC3, 0xA9, 10, 257, 258}) == "aé\n");
}

TEST_CASE("invalid UTF-8 is encoded as U+FFFD and never decoded as it is", "[fast]") {
  const auto bytes = Tokenizer::load({"bytes", "", false, true});
  CHECK(bytes->encode("a\xFF"
                      "b") == std::vector<int32_t>{97, 0xEF, 0xBF, 0xBD, 98});
  CHECK(bytes->decode(std::vector<int32_t>{0xFF, 97, 0xC3}) ==
        "\xEF\xBF\xBD"
        "a"
        "\xEF\xBF\xBD");
  // A special token between the bytes of a character ends it.
  CHECK(bytes->decode(std::vector<int32_t>{0xC3, 257, 0xA9}) == "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("bytes of text are counted by token, also where a character is cut", "[fast]") {
  const auto bytes = Tokenizer::load({"bytes", "", false, true});
  CHECK(bytes->text_bytes(97) == 1);
  CHECK(bytes->text_bytes(0xC3) == 1);
  CHECK(bytes->text_bytes(257) == 0);
  CHECK_THROWS_WITH(bytes->text_bytes(259), "token id outside the vocabulary (found 259, expected 0 <= id < 259)");
  CHECK_THROWS_AS(bytes->decode(std::vector<int32_t>{-1}), DataError);
}

TEST_CASE("streaming decode holds incomplete characters back and equals decoding at once", "[fast]") {
  const auto bytes = Tokenizer::load({"bytes", "", false, true});
  Tokenizer::Decoder decoder(bytes);
  CHECK(decoder.push('x') == "x");
  CHECK(decoder.push(0xE6) == "");
  CHECK(decoder.push(0x97) == "");
  CHECK(decoder.push(0xA5) == "日");
  CHECK(decoder.push(0xF0) == "");
  CHECK(decoder.push('y') == "\xEF\xBF\xBDy");
  CHECK(decoder.push(0xC3) == "");
  CHECK(decoder.finish() == "\xEF\xBF\xBD");
  CHECK(decoder.finish() == "");

  Rng rng(3, "stream");
  for (int i = 0; i < 200; ++i) {
    std::vector<int32_t> ids(rng.below(40));
    std::generate(ids.begin(), ids.end(), [&] { return rng.below(2) == 0 ? rng.below(128) : 0xC0 + rng.below(67); });
    Tokenizer::Decoder stream(bytes);
    std::string joined;
    for (const int32_t id : ids) {
      joined += stream.push(id);
      CHECK(utf8_first_invalid(joined) == std::string::npos);
    }
    CHECK(joined + stream.finish() == bytes->decode(ids));
  }
}

TEST_CASE("tokenizer configurations that do not fit are refused", "[fast]") {
  CHECK_THROWS_WITH(Tokenizer::load({"bytes", "x.model", false, true}),
                    "tokenizer.file: the type \"bytes\" reads no file; leave out \"x.model\"");
  CHECK_THROWS_WITH(Tokenizer::load({"wordpiece", "", false, true}),
                    "tokenizer.type: found \"wordpiece\", expected \"sentencepiece\", \"huggingface\" or \"bytes\"");
  Json json = parse_json(R"({"type": "bytes", "add_eos": false})", "t.json");
  const auto config = Fields::read<TokenizerConfig>(json, "tokenizer");
  CHECK(config.type == "bytes");
  CHECK_FALSE(config.add_eos);
  CHECK_FALSE(config.add_bos);
}

#if HEBB_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

namespace {

using Settings = std::unordered_map<std::string, std::string>;

/// A small model; `changes` to the settings that hebb trains with.
std::string train_model(const Settings& changes) {
  Settings settings = {{"model_type", "bpe"},
                       {"vocab_size", "700"},
                       {"byte_fallback", "true"},
                       {"pad_id", "-1"},
                       {"split_digits", "true"},
                       {"normalization_rule_name", "identity"},
                       {"remove_extra_whitespaces", "false"},
                       {"add_dummy_prefix", "false"},
                       {"hard_vocab_limit", "false"},
                       {"num_threads", "1"},
                       {"minloglevel", "3"}};
  for (const auto& [key, value] : changes) { settings[key] = value; }
  const TempFolder folder;
  settings["input"] = folder.write("in.txt", training_text(400)).string();
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, nullptr, &model);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return model;
}

/// The tokenizer and the library with the same model.
struct Pair {
  explicit Pair(const Settings& changes) {
    const TempFolder folder;
    const std::string model = train_model(changes);
    tokenizer = Tokenizer::load({"sentencepiece", folder.write("m.model", model).string(), false, true});
    REQUIRE(library.LoadFromSerializedProto(model).ok());
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  sentencepiece::SentencePieceProcessor library;
};

std::vector<int32_t> library_encode(const Pair& pair, const std::string& text) {
  std::vector<int> ids;
  REQUIRE(pair.library.Encode(text, &ids).ok());
  return ids;
}

/// Random texts of all kinds, one encoder with its cache for all, against the library.
void check_against_library(const Pair& pair, int texts) {
  Tokenizer::Encoder encoder(pair.tokenizer);
  Rng rng(11, "against library");
  int64_t tokens = 0;
  for (int i = 0; i < texts; ++i) {
    const std::string text = random_text(rng);
    std::vector<int32_t> ids;
    encoder.encode(text, ids);
    INFO("text " << i << ": " << text);
    REQUIRE(ids == library_encode(pair, text));
    std::string decoded;
    REQUIRE(pair.library.Decode(std::vector<int>(ids.begin(), ids.end()), &decoded).ok());
    REQUIRE(pair.tokenizer->decode(ids) == decoded);
    tokens += static_cast<int64_t>(ids.size());
  }
  CHECK(tokens > texts);
}

}  // namespace

TEST_CASE("the built-in BPE encoder and the decoder equal the library on random text", "[fast]") {
  const Pair pair(Settings{});
  CHECK(pair.tokenizer->encoder_name() == "built-in BPE");
  check_against_library(pair, 3000);
}

TEST_CASE("the built-in BPE encoder equals the library for other ways to treat spaces", "[fast]") {
  const Settings changes = GENERATE(values<Settings>({
      {{"add_dummy_prefix", "true"}, {"allow_whitespace_only_pieces", "true"}},  // as in Llama and Mistral models
      {{"split_by_whitespace", "false"}},
      {{"allow_whitespace_only_pieces", "true"}},
      {{"split_by_unicode_script", "false"}, {"split_digits", "false"}, {"split_by_number", "false"}},
      {{"character_coverage", "0.98"}, {"vocab_size", "400"}},  // characters outside the vocabulary
      {{"user_defined_symbols",
        "<sep>,e,th,the,\xE2\x96\x81\xE2\x96\x81,\xE2\x96\x81"
        "a"},
       {"add_dummy_prefix", "true"}},
  }));
  const Pair pair(changes);
  CHECK(pair.tokenizer->encoder_name() == "built-in BPE");
  check_against_library(pair, 1200);
}

TEST_CASE("models that the built-in encoder cannot reproduce go through the library", "[fast]") {
  const auto [changes, reason] = GENERATE(table<Settings, std::string>({
      {{{"model_type", "unigram"}}, "not a BPE model"},
      {{{"normalization_rule_name", "nmt_nfkc"}}, "normalisation rules"},
      {{{"remove_extra_whitespaces", "true"}}, "removal of extra white space"},
      {{{"byte_fallback", "false"}}, "no byte fallback"},
      {{{"treat_whitespace_as_suffix", "true"}}, "white space as suffix"},
      {{{"user_defined_symbols", "a b"}}, "a piece with a raw space"},
  }));
  const Pair pair(changes);
  CHECK(pair.tokenizer->encoder_name() == "library (" + reason + ")");
  check_against_library(pair, 150);
}

TEST_CASE("a model in which a piece occurs twice is not for the built-in encoder", "[fast]") {
  SentencePieceModel model;
  model.type = SentencePieceModel::Type::bpe;
  model.byte_fallback = true;
  model.remove_extra_whitespaces = false;
  model.pieces = {{"a", -1}, {"b", -2}};
  CHECK(BpeEncoder::obstacle(model) == "");
  model.pieces.push_back({"a", -3});
  CHECK(BpeEncoder::obstacle(model) == "a piece that occurs twice");
}

TEST_CASE("bytes of a document are those of its text, without the space in front that encoding makes", "[fast]") {
  // As Llama's models; without spaces at the ends; hebb's own.
  const Pair pair(
      GENERATE(values<Settings>({{{"add_dummy_prefix", "true"}}, {{"remove_extra_whitespaces", "true"}}, {}})));
  for (const std::string text : {"birds", " birds", "the memory", "\xE2\x82\xAC 5", "a"}) {
    const std::vector<int32_t> ids = pair.tokenizer->encode(text);
    int64_t bytes = 0;
    for (const int64_t own : pair.tokenizer->document_bytes(ids)) { bytes += own; }
    INFO("\"" << text << "\"");
    CHECK(bytes == static_cast<int64_t>(pair.tokenizer->decode(ids).size()));
  }
}

TEST_CASE("text that follows other text keeps its first space", "[fast]") {
  const Pair pair(Settings{{"add_dummy_prefix", "true"}});
  const std::vector<int32_t> ids = pair.tokenizer->encode("morning river");
  std::string begins, follows;
  Tokenizer::Decoder first(pair.tokenizer), second(pair.tokenizer);
  second.follow_text();
  for (const int32_t id : ids) {
    begins += first.push(id);
    follows += second.push(id);
  }
  CHECK(begins == "morning river");
  CHECK(follows == " morning river");
}

FOLDER_TEST("a document of which the tokenizer leaves nothing is an empty one", "[fast]") {
  const std::string model = train_model({{"remove_extra_whitespaces", "true"}});
  EncodeOptions options{.input = {.inputs = {folder.write("in.txt", "the|  |memory").string()}, .split = "|"},
                        .tokenizer = {"sentencepiece", folder.write("m.model", model).string(), false, false},
                        .out = folder / "out"};
  Progress quiet;
  const EncodeReport report = encode_corpus(options, quiet);
  CHECK(report.input.documents == 2);
  CHECK(report.input.empty == 1);
  CHECK(report.input.text_bytes == 9);
}

TEST_CASE("long texts without a cut, and words longer than the cache holds, equal the library", "[fast]") {
  const Pair pair(Settings{{"split_by_whitespace", "false"}});
  Rng rng(2, "long");
  std::string text;
  for (int i = 0; i < 3000; ++i) { text += "memory"[rng.below(6)]; }
  CHECK(pair.tokenizer->encode(text) == library_encode(pair, text));
  CHECK(pair.tokenizer->encode(std::string(5001, 'm')) == library_encode(pair, std::string(5001, 'm')));
}

TEST_CASE("decode inverts encode for any text except that U+2581 comes back as a space", "[fast]") {
  const Pair pair(Settings{});
  Rng rng(8, "round trip");
  for (int i = 0; i < 1000; ++i) {
    const std::string text = random_text(rng);
    const std::string decoded = pair.tokenizer->decode(pair.tokenizer->encode(text));
    REQUIRE(decoded == replace_all(text, "\xE2\x96\x81", " "));
  }
  CHECK(pair.tokenizer->loses_visible_space());
}

FOLDER_TEST("special ids and the hash come from the model file", "[fast]") {
  const std::string model = train_model({});
  const std::string file = folder.write("m.model", model).string();
  const auto tokenizer = Tokenizer::load({"sentencepiece", file, true, true});
  CHECK(tokenizer->special().bos == 1);
  CHECK(tokenizer->special().eos == 2);
  CHECK(tokenizer->special().pad == -1);
  CHECK(tokenizer->special().add_bos);
  CHECK(tokenizer->hash() == fnv1a64(model));
  CHECK(tokenizer->model_bytes() == model);
  // Special pieces in the text are text.
  CHECK(tokenizer->decode(tokenizer->encode("<s>a</s><unk><0x41>")) == "<s>a</s><unk><0x41>");
  CHECK(tokenizer->decode(std::vector<int32_t>{1, 2}) == "");
  CHECK(tokenizer->decode(std::vector<int32_t>{0}) == " \xE2\x81\x87 ");
}

FOLDER_TEST("add_bos and add_eos need the ids in the model", "[fast]") {
  const std::string file = folder.write("m.model", train_model({{"bos_id", "-1"}, {"eos_id", "-1"}})).string();
  CHECK_THROWS_WITH(Tokenizer::load({"sentencepiece", file, false, true}),
                    "tokenizer.add_eos: found true, expected false, as " + file + " has no EOS");
  CHECK_THROWS_WITH(Tokenizer::load({"sentencepiece", file, true, false}),
                    "tokenizer.add_bos: found true, expected false, as " + file + " has no BOS");
  CHECK(Tokenizer::load({"sentencepiece", file, false, false})->special().eos == -1);
}

FOLDER_TEST("damaged model files are data errors that name the file", "[fast]") {
  const std::string model = train_model({});
  const std::string cut = folder.write("cut.model", model.substr(0, model.size() / 2 + 1)).string();
  CHECK_THROWS_AS(Tokenizer::load({"sentencepiece", cut, false, true}), DataError);
  const std::string text = folder.write("text.model", "this is no model").string();
  CHECK_THROWS_WITH(Tokenizer::load({"sentencepiece", text, false, true}),
                    Catch::Matchers::StartsWith(text + ": not a SentencePiece model"));
  const std::string ranks = folder.write("tokenizer.model", "IQ== 0\nIg== 1\n").string();
  CHECK_THROWS_WITH(Tokenizer::load({"sentencepiece", ranks, false, true}),
                    Catch::Matchers::StartsWith(ranks + ": not a SentencePiece model (found a file of tiktoken") &&
                        Contains("expected the tokenizer.json of the same model"));
  const std::string empty = folder.write("empty.model", "").string();
  CHECK_THROWS_WITH(Tokenizer::load({"sentencepiece", empty, false, true}),
                    empty + ": not a SentencePiece model (found no vocabulary, expected at least one piece)");
  CHECK_THROWS_AS(Tokenizer::load({"sentencepiece", (folder / "none.model").string(), false, true}), DataError);
  CHECK_THROWS_WITH(Tokenizer::load({"sentencepiece", "", false, true}),
                    "tokenizer.file: found nothing, expected a SentencePiece .model file");
}
#endif
