#include "data/tokenizer/tokenizer_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <unordered_map>

#include "core/error.h"
#include "core/json.h"
#include "data/tokenizer/byte_characters.h"

namespace hebb {
namespace {

constexpr int32_t kMaxIds = 1 << 20;  // a damaged id must not fill the memory

/// A value of the file and the path of its key.
struct Value {
  const Json* json;
  std::string path;
  const std::string* file;

  [[noreturn]] void refuse(const std::string& expected) const { refuse(json->found(), expected); }
  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const {
    const std::string place = json->origin().str();
    throw DataError(place.empty() ? *file : place, path.empty() ? "not a tokenizer.json" : path, found, expected);
  }
  bool is_null() const { return json == nullptr || json->is_null(); }

  const Value& object(std::initializer_list<std::string_view> keys) const {
    if (!json->is_object()) { refuse("an object"); }
    for (const auto& [key, value] : json->members()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        value_of(key, value).refuse(value.found(), "no such key, as its effect on ids is not known");
      }
    }
    return *this;
  }
  /// A member that may be absent.
  Value member(const std::string& key) const { return value_of(key, *(json->find(key) ? json->find(key) : &kNull)); }
  Value required(const std::string& key) const {
    if (json->find(key) == nullptr) { refuse("no key \"" + key + "\"", "one"); }
    return member(key);
  }
  std::vector<Value> items() const {
    if (!json->is_array()) { refuse("an array"); }
    std::vector<Value> values;
    for (size_t i = 0; i < json->items().size(); ++i) {
      values.push_back({&json->items()[i], fmt::format("{}.{:d}", path, i), file});
    }
    return values;
  }
  const std::string& string() const {
    if (!json->is_string()) { refuse("a string"); }
    return json->as_string();
  }
  bool boolean(bool absent) const {
    if (json->is_null()) { return absent; }
    if (!json->is_bool()) { refuse("true or false"); }
    return json->as_bool();
  }
  int32_t id() const {
    const bool fits = json->is_integer() && json->as_double() >= 0 && json->as_double() < kMaxIds;
    if (!fits) { refuse(fmt::format("an id from 0 to {:d}", kMaxIds - 1)); }
    return static_cast<int32_t>(json->as_int());
  }
  const std::string& type() const { return object_type().string(); }
  Value object_type() const {
    if (!json->is_object()) { refuse("an object with a type"); }
    return required("type");
  }

 private:
  Value value_of(const std::string& key, const Json& value) const {
    return {&value, path.empty() ? key : path + "." + key, file};
  }
  static inline const Json kNull;
};

using Ids = std::unordered_map<std::string_view, int32_t>;

/// Whether valid UTF-8 can hold a byte: C0, C1 and F5 to FF never occur.
bool is_in_utf8(int byte) { return byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4); }

Ids read_vocab(const Value& vocab, TokenizerJson& out) {
  if (!vocab.json->is_object() || vocab.json->members().empty()) { vocab.refuse("an object with ids by token"); }
  Ids ids;
  ids.reserve(vocab.json->members().size());
  std::vector<bool> is_used;
  out.byte_ids.fill(-1);
  for (const auto& [token, json] : vocab.json->members()) {
    const Value value{&json, vocab.path, vocab.file};
    const int32_t id = value.id();
    is_used.resize(std::max<size_t>(is_used.size(), static_cast<size_t>(id) + 1));
    if (is_used[static_cast<size_t>(id)]) { value.refuse(fmt::format("id {:d} twice", id), "an id for each token"); }
    is_used[static_cast<size_t>(id)] = true;
    ids.emplace(token, id);
    const std::optional<std::string> bytes = bytes_of_characters(token);
    if (bytes && bytes->size() == 1) { out.byte_ids[static_cast<unsigned char>((*bytes)[0])] = id; }
    out.vocab.push_back({bytes.value_or(token), id, bytes.has_value()});
  }
  out.vocab_size = static_cast<int32_t>(is_used.size());
  for (int byte = 0; byte < 256; ++byte) {
    if (out.byte_ids[static_cast<size_t>(byte)] < 0 && is_in_utf8(byte)) {
      vocab.refuse(fmt::format("no token for byte {:d}", byte), "one for each byte of UTF-8, as in byte-level BPE");
    }
  }
  return ids;
}

/// "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_parts(const Value& merge) {
  if (merge.json->is_array() && merge.json->items().size() == 2) {
    const std::vector<Value> parts = merge.items();
    return {parts[0].string(), parts[1].string()};
  }
  if (!merge.json->is_string()) { merge.refuse("\"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]"); }
  const std::string& text = merge.json->as_string();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.refuse("two tokens with one space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const Value& merges, const Ids& ids, TokenizerJson& out) {
  const auto id_of = [&](const Value& merge, const std::string& token) {
    const auto found = ids.find(token);
    if (found == ids.end()) { merge.refuse("\"" + token + "\"", "a token of model.vocab"); }
    return found->second;
  };
  for (const Value& merge : merges.items()) {
    if (merge.json->is_string() && merge.json->as_string().starts_with("#version")) { continue; }
    const auto [left, right] = merge_parts(merge);
    out.merges.push_back({id_of(merge, left), id_of(merge, right), id_of(merge, left + right)});
  }
  constexpr size_t kExact = 1 << 24;  // priorities are float
  if (out.merges.size() >= kExact) { merges.refuse(std::to_string(out.merges.size()), "fewer than 2^24 merges"); }
}

Ids read_model(const Value& model, TokenizerJson& out) {
  if (!model.json->is_object()) { model.refuse("an object"); }
  if (const Value type = model.member("type"); !type.is_null() && type.string() != "BPE") {
    type.refuse(type.string() == "Unigram"
                    ? "\"BPE\", over bytes; of a SentencePiece model give the file tokenizer.model"
                    : "\"BPE\", over bytes; other models are not supported");
  }
  model.object({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Value affix = model.member(key);
    if (!affix.is_null() && !affix.string().empty()) { affix.refuse("null or \"\""); }
  }
  const Value dropout = model.member("dropout");
  if (!dropout.is_null() && !(dropout.json->is_number() && dropout.json->as_double() == 0)) { dropout.refuse("null"); }
  const Value vocab = model.required("vocab");
  if (model.member("byte_fallback").boolean(false) && vocab.json->is_object() &&
      vocab.json->find("<0x00>") != nullptr) {
    model.member("byte_fallback")
        .refuse("true, the BPE of a SentencePiece model", "its file tokenizer.model in place of this one");
  }
  // unk_token, fuse_unk and byte_fallback are for characters outside the vocabulary: it holds all bytes.
  out.ignores_merges = model.member("ignore_merges").boolean(false);
  Ids ids = read_vocab(vocab, out);
  read_merges(model.required("merges"), ids, out);
  return ids;
}

void read_added_tokens(const Value& added, const Ids& ids, TokenizerJson& out) {
  if (added.is_null()) { return; }
  Ids seen;
  const std::vector<Value> values = added.items();
  out.added.reserve(values.size());  // `seen` points into it
  // The library numbers what is not in the vocabulary itself and only warns where the file says something else.
  auto next = static_cast<int32_t>(ids.size());
  for (const Value& value : values) {
    value.object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const Value content = value.required("content"), id = value.required("id");
    if (content.string().empty()) { content.refuse("a text"); }
    const Value single = value.member("single_word");
    if (single.boolean(false)) { single.refuse("false: other added tokens are not supported"); }
    out.added.push_back({.content = content.string(),
                         .id = id.id(),
                         .is_special = value.member("special").boolean(false),
                         .strips_left = value.member("lstrip").boolean(false),
                         .strips_right = value.member("rstrip").boolean(false),
                         .is_normalized = value.member("normalized").boolean(true)});
    const TokenizerJson::AddedToken& token = out.added.back();
    if (!seen.emplace(token.content, token.id).second) { content.refuse("a token that is added once"); }
    const auto known = ids.find(token.content);
    const int32_t expected = known != ids.end() ? known->second : next++;
    if (token.id != expected) {
      id.refuse(fmt::format("{:d}{}", expected, known != ids.end() ? ", the id in model.vocab" : ", the next free id"));
    }
    out.vocab_size = std::max(out.vocab_size, token.id + 1);
  }
}

void read_normalizer(const Value& normalizer, TokenizerJson& out) {
  if (normalizer.is_null()) { return; }
  const std::string& type = normalizer.type();
  if (type == "Sequence") {
    normalizer.object({"type", "normalizers"});
    for (const Value& item : normalizer.required("normalizers").items()) { read_normalizer(item, out); }
  } else if (type == "NFC") {
    normalizer.object({"type"});
    out.composes = true;
  } else {
    normalizer.object_type().refuse("\"NFC\", or no normalizer");
  }
}

/// A ByteLevel stage; `is_cut`: a Split before it has cut the text.
void read_byte_level(const Value& stage, bool is_cut, TokenizerJson& out) {
  stage.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  const Value space = stage.member("add_prefix_space"), regex = stage.member("use_regex");
  out.adds_space = space.boolean(true);
  const bool uses_regex = regex.boolean(true);
  if (is_cut && out.adds_space) { space.refuse("true, or none", "false after a Split"); }
  if (is_cut && uses_regex) { regex.refuse("true, or none", "false after a Split"); }
  if (uses_regex) { out.pattern = PreTokenizer::Pattern::gpt2; }
}

void read_split(const Value& stage, TokenizerJson& out) {
  stage.object({"type", "pattern", "behavior", "invert"});
  const Value pattern = stage.required("pattern").object({"Regex", "String"}).required("Regex");
  const Value behavior = stage.required("behavior"), invert = stage.member("invert");
  // The patterns match all of a text: to keep matches, or to remove what is between them, is the same.
  if (behavior.string() != (invert.boolean(false) ? "Removed" : "Isolated")) {
    behavior.refuse("\"Isolated\", or \"Removed\" with invert true");
  }
  const auto known = PreTokenizer::find(pattern.string());
  if (!known) {
    pattern.refuse("\"" + pattern.string() + "\"",
                   "the regular expression of GPT-2, cl100k, o200k, Llama 3, Qwen 2, Qwen 3.5 or Mistral NeMo");
  }
  out.pattern = *known;
}

void read_digits(const Value& digits, const Value& level, TokenizerJson& out) {
  digits.object({"type", "individual_digits"});
  const Value individual = digits.member("individual_digits"), space = level.member("add_prefix_space");
  if (!individual.boolean(false)) { individual.refuse("false, or none", "true"); }
  if (space.boolean(true)) { space.refuse("true, or none", "false after Digits"); }
  read_byte_level(level, false, out);
  if (out.pattern != PreTokenizer::Pattern::gpt2) { level.refuse("use_regex false", "true after Digits"); }
  out.pattern = PreTokenizer::Pattern::gpt2_digits;
}

void read_pre_tokenizer(const Value& stage, TokenizerJson& out) {
  if (stage.is_null()) { stage.refuse("nothing", "ByteLevel, or a Sequence of Split and ByteLevel"); }
  const std::string& type = stage.type();
  if (type == "ByteLevel") { return read_byte_level(stage, false, out); }
  if (type != "Sequence") { stage.object_type().refuse("\"ByteLevel\", or \"Sequence\" of Split and ByteLevel"); }
  stage.object({"type", "pretokenizers"});
  const Value list = stage.required("pretokenizers");
  const std::vector<Value> stages = list.items();
  if (stages.size() == 2 && stages[0].type() == "Digits" && stages[1].type() == "ByteLevel") {
    return read_digits(stages[0], stages[1], out);
  }
  if (stages.empty() || stages.size() > 2 || stages.back().type() != "ByteLevel" ||
      (stages.size() == 2 && stages.front().type() != "Split")) {
    list.refuse("ByteLevel, or Split or Digits and ByteLevel");
  }
  if (stages.size() == 2) { read_split(stages.front(), out); }
  read_byte_level(stages.back(), stages.size() == 2, out);
}

void read_decoder(const Value& decoder) {
  const bool is_sequence = !decoder.is_null() && decoder.type() == "Sequence";
  const std::vector<Value> stages = is_sequence ? decoder.required("decoders").items() : std::vector<Value>{decoder};
  if (stages.size() != 1 || stages[0].is_null() || stages[0].type() != "ByteLevel") { decoder.refuse("ByteLevel"); }
}

Json parse(std::string_view text, const std::string& where) {
  try {
    return parse_json(text, where);
  } catch (const ConfigError& error) { throw DataError("", std::string("not a tokenizer.json: ") + error.what()); }
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  const Json json = parse(text, where);
  const Value root{&json, "", &where};
  if (json.is_object() && json.find("config") != nullptr && json.find("vocab") != nullptr) {
    root.refuse("a file of Mistral's tekken", "the tokenizer.json of the same model");
  }
  root.object({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
               "decoder", "model"});
  for (const char* key : {"truncation", "padding"}) {
    if (!root.member(key).is_null()) { root.member(key).refuse("null"); }
  }
  // post_processor only acts where the library adds special tokens.
  TokenizerJson out;
  const Ids ids = read_model(root.required("model"), out);
  read_added_tokens(root.member("added_tokens"), ids, out);
  read_normalizer(root.member("normalizer"), out);
  read_pre_tokenizer(root.required("pre_tokenizer"), out);
  read_decoder(root.required("decoder"));
  return out;
}

}  // namespace hebb
