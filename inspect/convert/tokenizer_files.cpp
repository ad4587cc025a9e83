#include "inspect/convert/tokenizer_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer_export.h"

namespace hebb {
namespace {

constexpr const char *kJson = "tokenizer.json", *kModel = "tokenizer.model", *kUnexpressed = "sentencepiece.model",
                     *kConfig = "tokenizer_config.json";

/// What differs between SentencePiece and the tokenizer.json of a model.
void add_notes(const SentencePieceModel& model, TokenizerFiles& files) {
  if (model.type == SentencePieceModel::Type::unigram) {
    files.notes.emplace_back(
        "tokenizer.json: where two ways to cut a text score the same (\"-----\"), the library tokenizers may take the "
        "other one: it adds in double, SentencePiece in float");
  }
  const bool cuts = std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.type == SentencePieceModel::PieceType::user_defined;
  });
  if (cuts && model.type == SentencePieceModel::Type::bpe) {
    files.notes.emplace_back(
        "tokenizer.json: a text that spells a byte piece (\"<0x41>\") right behind a user-defined piece, or as a "
        "whole, "
        "may become that byte there");
  }
  if (!model.byte_fallback) {
    files.notes.emplace_back("tokenizer.json: text outside the vocabulary decodes to nothing there");
  }
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// The tokenizer of a file, or nothing and the reason in `files`.
std::shared_ptr<const Tokenizer> readable(const TokenizerConfig& config, int64_t vocab_size, TokenizerFiles& files) {
  try {
    auto tokenizer = Tokenizer::load(config);
    require_ids(*tokenizer, vocab_size, "vocab_size of config.json");
    return tokenizer;
  } catch (const DataError& error) {
    files.notes.push_back(fmt::format("not used: {}", error.what()));
  } catch (const ConfigError& error) { files.notes.push_back(fmt::format("not used: {}", error.what())); }
  return nullptr;
}

/// The object data.tokenizer.
Json named(const TokenizerConfig& config) {
  Json json = Json::object({{"type", config.type}});
  if (!config.file.empty()) { json.set("file", config.file); }
  json.set("add_bos", config.add_bos);
  json.set("add_eos", config.add_eos);
  return json;
}

/// Whether transformers puts BOS in front of a text: what tokenizer_config.json says, else the post-processor.
bool puts_bos(const fs::path& source) {
  if (is_file(source / kConfig)) {
    const Json config = parse_json_file((source / kConfig).string());
    const Json* adds = config.find("add_bos_token");
    if (adds != nullptr && adds->is_bool()) { return adds->as_bool(); }
  }
  return is_file(source / kJson) && adds_special_tokens(parse_json_file((source / kJson).string()));
}

/// Whether a tokenizer.json is that of "bytes" as export_tokenizer() writes it.
bool is_of_bytes(const std::string& text) {
  for (const bool adds_bos : {false, true}) {
    if (text == tokenizer_json_of(*Tokenizer::load({"bytes", "", adds_bos, false}))) { return true; }
  }
  return false;
}

}  // namespace

TokenizerFiles export_tokenizer(const Tokenizer& tokenizer, int64_t max_length, NewFolder& folder) {
  TokenizerFiles files;
  const auto write = [&](const char* name, const std::string& text) {
    write_file_atomic(folder.add(name), text);
    files.names.emplace_back(name);
  };
  TokenizerConfig own = tokenizer.config();
  own.file = own.type == "bytes" ? "" : tokenizer_copy_name(own);
  files.config = named(own);
  if (own.type == "sentencepiece") {
    const SentencePieceModel model = parse_sentencepiece_model(tokenizer.model_bytes(), tokenizer.config().file);
    if (const std::string reason = tokenizer_json_obstacle(model); !reason.empty()) {
      write(kUnexpressed, tokenizer.model_bytes());
      files.config.set("file", kUnexpressed);
      files.notes.push_back(
          "no tokenizer.json, so AutoTokenizer finds none: none expresses this SentencePiece model "
          "exactly (" +
          reason + ")");
      return files;
    }
    add_notes(model, files);
    write(kModel, tokenizer.model_bytes());
  }
  write(kJson, tokenizer_json_of(tokenizer));
  write(kConfig, tokenizer_config_of(tokenizer, max_length).dump(1) + "\n");
  return files;
}

TokenizerFiles import_tokenizer(const fs::path& source, int64_t vocab_size, NewFolder& folder) {
  TokenizerFiles files;
  for (const char* name : {kJson, kModel, kUnexpressed}) {
    if (!is_file(source / name)) { continue; }
    const bool is_json = std::string(name) == kJson;
    const std::string text = read_file(source / name);
    TokenizerConfig config{is_json ? "huggingface" : "sentencepiece", (source / name).string(), false, false};
    if (is_json && is_of_bytes(text)) { config = {"bytes", "", false, false}; }
    const auto tokenizer = readable(config, vocab_size, files);
    if (tokenizer == nullptr) { continue; }
    files.notes.clear();
    const Tokenizer::Special& special = tokenizer->special();
    config.file = config.type == "bytes" ? "" : tokenizer_copy_name(config);
    config.add_bos = special.bos >= 0 && puts_bos(source);
    config.add_eos = special.eos >= 0;
    if (!config.file.empty()) {
      write_file_atomic(folder.add(config.file), text);
      files.names.push_back(config.file);
    }
    files.config = named(config);
    return files;
  }
  if (files.notes.empty()) {
    files.notes.push_back(fmt::format("{}: has neither tokenizer.json nor tokenizer.model", source.string()));
  }
  files.notes.emplace_back("no tokenizer is named: generate, and evaluations of text, need --tokenizer");
  return files;
}

}  // namespace hebb
