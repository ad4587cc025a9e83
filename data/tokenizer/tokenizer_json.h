#pragma once
// tokenizer.json of Hugging Face's library tokenizers, where it holds a BPE model over bytes.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/pre_tokenizer.h"

namespace hebb {

struct TokenizerJson {
  struct Token {
    std::string bytes;  // what it stands for
    int32_t id;
    bool comes_from_text;  // false: a character of it stands for no byte
  };
  struct Merge {
    int32_t left, right, merged;  // ids
  };
  struct AddedToken {
    std::string content;
    int32_t id;
    bool is_special;
    bool strips_left, strips_right;  // takes the white space beside it
    bool is_normalized;              // is looked for in normalised text
  };

  std::vector<Token> vocab;   // in the order of the file
  std::vector<Merge> merges;  // the first has priority
  std::vector<AddedToken> added;
  std::array<int32_t, 256> byte_ids{};
  int32_t vocab_size = 0;       // highest id + 1
  bool ignores_merges = false;  // a word that is in the vocabulary is one token
  bool composes = false;        // NFC before everything else
  bool adds_space = false;      // in front of a text that does not begin with a space
  PreTokenizer::Pattern pattern = PreTokenizer::Pattern::whole;
};

/// Reads the file. `where` names it in messages.
/// Errors: DataError (place in the file, key, what was found and expected) for damage, and for everything that would
/// change ids and is not supported: other models, normalisers, pre-tokenizers and regular expressions, truncation.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace hebb
