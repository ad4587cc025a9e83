#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe_merge.h"
#include "data/tokenizer/tokenizer_json.h"

namespace hebb {

/// Encodes with a tokenizer.json to the ids that the library tokenizers returns with add_special_tokens=False:
/// added tokens are found in the text, the rest is normalised, cut into words, and each word's bytes are merged.
class ByteLevelEncoder {
 public:
  explicit ByteLevelEncoder(const TokenizerJson& json);

  using Scratch = BpeScratch;
  /// Appends the ids of `text`, which must be valid UTF-8.
  void encode(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void encode_text(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_words(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void merge_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  bool composes_, adds_space_;
  PreTokenizer pre_tokenizer_;
  AddedTokens added_, normalized_added_;
  std::array<int32_t, 256> byte_ids_;
  BpeMerges merges_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> words_;  // where they need no merges
};

}  // namespace hebb
