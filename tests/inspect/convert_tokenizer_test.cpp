// What hebb convert writes and reads of tokenizers.
#include "core/weight_source.h"
#include "data/tokenizer/tokenizer_export.h"
#include "inspect/convert/convert.h"
#include "tests/paths.h"
#include "tests/test.h"
#include "tests/train/run_fixture.h"
#include "train/model_source.h"

namespace {

std::string exported(const std::string& file) { return HEBB_TEST_DATA + "/golden/tokenizer-export/" + file; }
std::string published(const std::string& file) { return HEBB_TEST_DATA + "/golden/tokenizer-json/" + file; }

/// A folder of hebb with a model of 800 tokens and the tokenizer that `tokenizer` names.
fs::path model_with(const TempFolder& folder, const std::string& tokenizer) {
  Json json =
      json_in(folder, R"({"name": "m", "model": {"vocab_size": 800, "hidden_size": 4, "num_layers": 1, "layers": {
      "att": {"type": "attention", "num_heads": 1, "head_dim": 4, "rope": {"theta": 5000.0}},
      "mlp": {"type": "swiglu", "intermediate_size": 4}}, "pattern": [{"mixer": "att", "ffn": "mlp"}]},
    "data": {"sources": [{"path": "tokens.bin", "format": "raw_u16", "split_token": 0}]},
    "train": {"steps": 1, "batch_size": 2, "sequence_length": 19, "device": "cpu"}, "optimizer": {"lr": 0.01}})");
  REQUIRE(run_in(folder / "run", resolved_run(json)) == 0);
  fs::create_directories(folder / "model");
  fs::copy_file(checkpoint_in(folder / "run", 1) / "model.safetensors", folder / "model/model.safetensors");
  Json config = Json::object({{"model", json.at("model")}});
  if (!tokenizer.empty()) {
    config.set("data", Json::object({{"tokenizer", parse_json(tokenizer, "tokenizer.json")}}));
  }
  folder.write("model/config.json", config.dump());
  return folder / "model";
}

std::string sentencepiece(const std::string& file, const std::string& more = "") {
  return R"({"type": "sentencepiece", "file": ")" + file + "\"" + more + "}";
}

Json json_of(const fs::path& file) { return parse_json_file(file.string()); }

}  // namespace

#if HEBB_HAVE_SENTENCEPIECE
FOLDER_TEST("an exported folder has what transformers needs to encode and to stop", "[fast]") {
  convert_checkpoint(model_with(folder, sentencepiece(exported("bpe.model"))), folder / "out");
  CHECK(read_file(folder / "out/tokenizer.json") == read_file(exported("bpe.json")));
  CHECK(read_file(folder / "out/tokenizer.model") == read_file(exported("bpe.model")));
  const Json config = json_of(folder / "out/config.json"), generation = json_of(folder / "out/generation_config.json");
  for (const auto& [key, id] : {std::pair{"bos_token_id", 1}, {"eos_token_id", 2}, {"pad_token_id", 3}}) {
    CHECK(config.at(key) == Json(id));
    CHECK(generation.at(key) == Json(id));
  }
  CHECK(json_of(folder / "out/tokenizer_config.json") ==
        parse_json(R"({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>",
          "pad_token": "<pad>", "unk_token": "<unk>", "add_bos_token": false, "add_eos_token": false,
          "clean_up_tokenization_spaces": false, "model_max_length": 4096})",
                   "expected.json"));
}
#endif

FOLDER_TEST("a run with BOS in front of documents gives a tokenizer that puts it in front of texts", "[fast]") {
  const fs::path model =
      model_with(folder, R"({"type": "huggingface", "file": ")" + published("llama3.json") + R"(", "add_bos": true})");
  convert_checkpoint(model, folder / "out");
  const Json json = json_of(folder / "out/tokenizer.json");
  CHECK(adds_special_tokens(json));
  CHECK(json.find_path("post_processor.single.0.SpecialToken.id")->as_string() == "<|begin_of_text|>");
  CHECK(json_of(folder / "out/tokenizer_config.json").at("add_bos_token") == Json(true));
  CHECK(json_of(folder / "out/tokenizer_config.json").at("bos_token") == Json("<|begin_of_text|>"));
  convert_checkpoint(folder / "out", folder / "back");
  CHECK(json_of(folder / "back/config.json").at("data") == parse_json(R"({"tokenizer": {"type": "huggingface",
    "file": "tokenizer.json", "add_bos": true, "add_eos": true}})",
                                                                      "expected.json"));
  // Without BOS the file stays as it is.
  Json config = json_of(model / "config.json");
  config.find("data")->find("tokenizer")->set("add_bos", false);
  folder.write("model/config.json", config.dump());
  convert_checkpoint(model, folder / "plain");
  CHECK(read_file(folder / "plain/tokenizer.json") == read_file(published("llama3.json")));
}

FOLDER_TEST("a tokenizer comes back from an exported folder, and the folder names it", "[fast]") {
  const std::string type = GENERATE("bytes", "sentencepiece", "huggingface");
#if !HEBB_HAVE_SENTENCEPIECE
  if (type == "sentencepiece") { return; }
#endif
  const std::string named = type == "bytes" ? R"({"type": "bytes"})"
                            : type == "sentencepiece"
                                ? sentencepiece(exported("prefix.model"))
                                : R"({"type": "huggingface", "file": ")" + published("gpt2.json") + "\"}";
  const fs::path model = model_with(folder, named);
  convert_checkpoint(model, folder / "out");
  const Json ids = json_of(folder / "out/config.json"), generation = json_of(folder / "out/generation_config.json");
  CHECK(ids.at("eos_token_id").is_integer());
  CHECK(ids.at("pad_token_id").is_null() == (type != "bytes"));
  // Without PAD generation fills rows with EOS.
  CHECK(generation.at("pad_token_id") == ids.at(type == "bytes" ? "pad_token_id" : "eos_token_id"));
  convert_checkpoint(folder / "out", folder / "back");
  const auto tokenizer = tokenizer_of(read_model_source(folder / "back"));
  REQUIRE(tokenizer.has_value());
  CHECK(tokenizer->type == type);
  CHECK_FALSE(tokenizer->add_bos);
  CHECK(tokenizer_hash(*tokenizer) == tokenizer_hash(*tokenizer_of(read_model_source(model))));
  fs::rename(folder / "back", folder / "moved");
  CHECK_NOTHROW(Tokenizer::load(*tokenizer_of(read_model_source(folder / "moved"))));
}

FOLDER_TEST("a model without a tokenizer has null ids, and its folder says what is missing", "[fast]") {
  CHECK_THAT(convert_checkpoint(model_with(folder, ""), folder / "out"), Contains("no tokenizer: "));
  CHECK(json_of(folder / "out/config.json").at("eos_token_id").is_null());
  CHECK(json_of(folder / "out/generation_config.json").at("eos_token_id").is_null());
  CHECK_FALSE(fs::exists(folder / "out/tokenizer.json"));
  const std::string nothing = convert_checkpoint(folder / "out", folder / "back");
  CHECK_THAT(nothing, Contains("has neither tokenizer.json nor tokenizer.model"));
  CHECK_THAT(nothing, Contains("no tokenizer is named"));
  CHECK_FALSE(tokenizer_of(read_model_source(folder / "back")).has_value());
  folder.write("out/tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  CHECK_THAT(convert_checkpoint(folder / "out", folder / "again"), Contains("WordPiece"));
}

FOLDER_TEST("a PyTorch folder names its tokenizer for hebb", "[fast]") {
  ConvertOptions options;
  options.to = "pytorch";
  convert_checkpoint(model_with(folder, R"({"type": "bytes", "add_bos": true})"), folder / "out", options);
  CHECK(json_of(folder / "out/config.json").at("eos_token_id") == Json(257));
  CHECK(read_file(folder / "out/tokenizer.json").find("TemplateProcessing") != std::string::npos);
  const auto tokenizer = tokenizer_of(read_model_source(folder / "out"));
  REQUIRE(tokenizer.has_value());
  CHECK(tokenizer->type == "bytes");
  CHECK(tokenizer->add_bos);
}

FOLDER_TEST("weights above the size of a shard become shards with an index", "[fast]") {
  const fs::path model = model_with(folder, R"({"type": "bytes"})");
  ConvertOptions options;
  options.shard_bytes = 13000;
  CHECK_THAT(convert_checkpoint(model, folder / "out", options), Contains("model-00002-of-00003"));
  CHECK_FALSE(fs::exists(folder / "out/model.safetensors"));
  const Json index = json_of(folder / "out/model.safetensors.index.json");
  CHECK(index.at("metadata").at("total_size") == Json(26096));
  CHECK(index.at("weight_map").at("lm_head.weight") == Json("model-00003-of-00003.safetensors"));
  for (const char* shard : {"1", "2", "3"}) {
    const SafetensorsFile file(folder / ("out/model-0000" + std::string(shard) + "-of-00003.safetensors"));
    CHECK(file.metadata().at("format") == "pt");
  }
  convert_checkpoint(folder / "out", folder / "back");
  CHECK(WeightSource(folder / "back").doubles("embed.weight") == WeightSource(model).doubles("embed.weight"));
}
