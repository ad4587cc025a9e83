#include "data/tokenizer/tokenizer_export.h"

#include "core/files.h"
#include "tests/paths.h"
#include "tests/test.h"

namespace {

std::string golden_export(const std::string& file) { return HEBB_TEST_DATA + "/golden/tokenizer-export/" + file; }

using Type = SentencePieceModel::Type;
using PieceType = SentencePieceModel::PieceType;

/// A BPE model that a tokenizer.json expresses.
SentencePieceModel small_model() {
  SentencePieceModel model;
  model.type = Type::bpe;
  model.byte_fallback = true;
  model.add_dummy_prefix = model.remove_extra_whitespaces = false;
  model.pieces = {{"<unk>", 0, PieceType::unknown},
                  {"<s>", 0, PieceType::control},
                  {"ab", -1},
                  {"abc", -2},
                  {"a", -3},
                  {"b", -4},
                  {"c", -5},
                  {"\xE2\x96\x81", -6}};
  return model;
}

std::string reason(void (*change)(SentencePieceModel&)) {
  SentencePieceModel model = small_model();
  change(model);
  return tokenizer_json_obstacle(model);
}

}  // namespace

#if HEBB_HAVE_SENTENCEPIECE
// The library has read these files and given the ids and texts of cases.json (tests/reference/tokenizer_export.py).
TEST_CASE("SentencePiece models become the files whose ids are those of the library tokenizers", "[fast]") {
  const Json cases = parse_json_file(golden_export("cases.json"));
  const std::vector<Json>& texts = cases.at("texts").items();
  REQUIRE(texts.size() > 15);
  REQUIRE(cases.at("models").members().size() == 4);
  for (const auto& [name, expected] : cases.at("models").members()) {
    const auto tokenizer = Tokenizer::load({"sentencepiece", golden_export(name + ".model"), false, false});
    INFO(name);
    CHECK(tokenizer_json_of(*tokenizer) == read_file(golden_export(name + ".json")));
    CHECK(tokenizer_config_of(*tokenizer, 4096).dump(1) + "\n" == read_file(golden_export(name + ".config.json")));
    for (size_t i = 0; i < texts.size(); ++i) {
      INFO("text " << i);
      std::vector<int32_t> ids;
      for (const Json& id : expected.at("ids").items()[i].items()) { ids.push_back(static_cast<int32_t>(id.as_int())); }
      CHECK(tokenizer->encode(texts[i].as_string()) == ids);
      CHECK(tokenizer->decode(ids) == expected.at("decoded").items()[i].as_string());
    }
  }
}

TEST_CASE("user-defined pieces are found without the library", "[fast]") {
  const auto tokenizer = Tokenizer::load({"sentencepiece", golden_export("user.model"), false, false});
  CHECK(tokenizer->encoder_name() == "built-in BPE");
  CHECK(tokenizer->encode("[INST]") == std::vector<int32_t>{3});
  CHECK(tokenizer->encode("[INST[/INST]") == std::vector<int32_t>{5, 4});
}

TEST_CASE("BOS in front of documents becomes a template of tokenizer.json", "[fast]") {
  const std::string file = golden_export("bpe.model");
  const Json with = parse_json(tokenizer_json_of(*Tokenizer::load({"sentencepiece", file, true, true})), "with.json");
  const Json without =
      parse_json(tokenizer_json_of(*Tokenizer::load({"sentencepiece", file, false, true})), "without.json");
  CHECK(adds_special_tokens(with));
  CHECK_FALSE(adds_special_tokens(without));
  CHECK(with.at("post_processor").at("special_tokens").at("<s>").at("ids") == Json::array({1}));
  CHECK(with.at("post_processor").at("single").dump() ==
        R"([{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}])");
  CHECK(with.at("post_processor").at("pair").dump() ==
        R"([{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},)"
        R"({"SpecialToken":{"id":"<s>","type_id":1}},{"Sequence":{"id":"B","type_id":1}}])");
}
#endif

TEST_CASE("the byte tokenizer becomes a file of byte-level BPE that gives its ids", "[fast]") {
  const auto bytes = Tokenizer::load({"bytes", "", false, true});
  CHECK(tokenizer_json_of(*bytes) == read_file(golden_export("bytes.json")));
  const auto read = Tokenizer::load({"huggingface", golden_export("bytes.json"), false, true});
  std::string text;
  for (int c = 0; c < 128; ++c) { text += static_cast<char>(c); }
  text += "\xC3\xA9\xE4\xBA\x94\xF0\x9F\x98\x80";
  CHECK(read->encode(text) == bytes->encode(text));
  CHECK(read->special().eos == bytes->special().eos);
  CHECK(read->special().bos == bytes->special().bos);
}

TEST_CASE("models that no tokenizer.json expresses are told with the reason", "[fast]") {
  using M = SentencePieceModel;
  CHECK(reason([](M&) {}) == "");
  CHECK(reason([](M& m) { m.add_dummy_prefix = m.remove_extra_whitespaces = true; }) == "");
  CHECK(reason([](M& m) { m.pieces.push_back({"[x]", 0, PieceType::user_defined}); }) == "");
  CHECK(reason([](M& m) { m.type = Type::word; }) == "a model of words or characters");
  CHECK(reason([](M& m) { m.has_normalization_rules = true; }) == "its normalisation rules");
  CHECK(reason([](M& m) { m.escape_whitespaces = false; }) == "spaces are not escaped");
  CHECK(reason([](M& m) { m.whitespace_as_suffix = true; }) == "white space as suffix");
  CHECK(reason([](M& m) { m.pieces.push_back({"x", -7, PieceType::unused}); }) == "unused pieces");
  CHECK(reason([](M& m) { m.pieces.push_back({"a", -7}); }) == "the piece \"a\" occurs twice");
  CHECK(reason([](M& m) { m.pieces.push_back({"b c", -7}); }) == "the piece \"b c\" holds a raw space");
  CHECK(reason([](M& m) {
          m.pieces.push_back({"$", 0, PieceType::control});
        }) == "the special piece \"$\" is one character");
  CHECK(reason([](M& m) {
          m.pieces.push_back({"ax", -7});
        }) == "the piece \"ax\" holds the character \"x\", which is no piece");
  CHECK(reason([](M& m) { m.pieces.push_back({"ba", -1}); }) == "the pieces \"ab\" and \"ba\" have the same score");
  CHECK(reason([](M& m) {
          m.remove_extra_whitespaces = true;
          m.pieces.push_back({"[x]", 0, PieceType::user_defined});
        }) == "user-defined pieces and the removal of extra white space");
  CHECK(reason([](M& m) {
          m.pieces.push_back({"[x]", 0, PieceType::user_defined});
          m.pieces.push_back({"cba", -7});
        }) == "user-defined pieces, and the piece \"cba\", which its own text does not give");
  CHECK(reason([](M& m) { m.type = Type::unigram; }) ==
        "the character \"0\" is no piece, so that a text may spell a byte piece");
}

TEST_CASE("runs of one character may have one score where both rules cut them alike", "[fast]") {
  const auto of_c = [](std::vector<int> lengths, const char* other) {
    SentencePieceModel model = small_model();
    for (const int length : lengths) { model.pieces.push_back({std::string(static_cast<size_t>(length), 'c'), -1e9F}); }
    model.pieces.push_back({other, -7});
    return tokenizer_json_obstacle(model);
  };
  const std::string refused = "the pieces \"cc\" and \"cccc\" have the same score";
  CHECK(of_c({2, 4, 8, 3}, "bc") == "");
  CHECK(of_c({2, 4, 8, 3}, "bcc") == refused);  // a run goes on to merge
  const auto of_spaces = [](std::vector<int> lengths) {
    SentencePieceModel model = small_model();
    for (const int length : lengths) {
      std::string text;
      for (int i = 0; i < length; ++i) { text += "\xE2\x96\x81"; }
      model.pieces.push_back({text, -1e9F});
    }
    return tokenizer_json_obstacle(model);
  };
  CHECK(of_spaces({2, 4, 8, 5, 16, 6, 12, 13, 10, 14, 3, 9, 7, 11}) == "");  // Llama 2, Mistral
  CHECK_THAT(of_spaces({2, 3, 4}), Contains("have the same score"));
}
