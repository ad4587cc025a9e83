#include "data/tokenizer/byte_level_encoder.h"

#include "data/tokenizer/nfc.h"

namespace hebb {
namespace {

/// Tokens that are looked for in normalised text are normalised, too.
std::vector<TokenizerJson::AddedToken> composed_tokens(std::vector<TokenizerJson::AddedToken> tokens) {
  for (TokenizerJson::AddedToken& token : tokens) {
    std::string scratch;
    token.content = std::string(compose_nfc(token.content, scratch));
  }
  return tokens;
}

}  // namespace

ByteLevelEncoder::ByteLevelEncoder(const TokenizerJson& json)
    : composes_(json.composes),
      adds_space_(json.adds_space),
      pre_tokenizer_(json.pattern),
      added_(json.added, false),
      normalized_added_(json.composes ? composed_tokens(json.added) : json.added, true),
      byte_ids_(json.byte_ids),
      merges_(json.merges.size()) {
  // Backwards, as the last of equal merges counts in the library and the first in the table.
  for (size_t i = json.merges.size(); i-- > 0;) {
    const TokenizerJson::Merge& merge = json.merges[i];
    merges_.insert(pair_key(static_cast<uint32_t>(merge.left), static_cast<uint32_t>(merge.right)),
                   {merge.merged, -static_cast<float>(i)});
  }
  if (json.ignores_merges) {
    for (const TokenizerJson::Token& token : json.vocab) {
      if (token.comes_from_text) { words_.emplace(token.bytes, token.id); }
    }
  }
}

void ByteLevelEncoder::encode(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
  added_.split(
      text, [&](std::string_view part) { encode_text(part, scratch, ids); }, [&](int32_t id) { ids.push_back(id); });
}

void ByteLevelEncoder::encode_text(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
  std::string composed;
  if (composes_) { text = compose_nfc(text, composed); }
  normalized_added_.split(
      text, [&](std::string_view part) { encode_words(part, scratch, ids); }, [&](int32_t id) { ids.push_back(id); });
}

void ByteLevelEncoder::encode_words(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (adds_space_ && !text.starts_with(' ')) {
    scratch.text.assign(1, ' ');
    scratch.text += text;
    text = scratch.text;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = pre_tokenizer_.next(text, at);
    const std::string_view word = text.substr(at, end - at);
    scratch.cached(word, ids, [&] { merge_word(word, scratch, ids); });
    at = end;
  }
}

void ByteLevelEncoder::merge_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (!words_.empty()) {
    const auto found = words_.find(word);
    if (found != words_.end()) { return ids.push_back(found->second); }
  }
  scratch.start(word);
  for (uint32_t i = 0; i < word.size(); ++i) {
    scratch.append(byte_ids_[static_cast<unsigned char>(word[i])], i, i + 1);
  }
  scratch.merge(merges_);
  scratch.each([&](const Scratch::Node& node) { ids.push_back(node.symbol); });
}

}  // namespace hebb
