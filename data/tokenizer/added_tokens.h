#pragma once
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer_json.h"

namespace hebb {

/// Finds added tokens in text, the leftmost first and the longest among those that begin there.
class AddedTokens {
 public:
  /// Looks for the tokens whose is_normalized is `normalized`.
  AddedTokens(const std::vector<TokenizerJson::AddedToken>& tokens, bool normalized);

  bool is_empty() const { return tokens_.empty(); }

  /// Calls on_text(part) for what lies between tokens and on_token(id) for tokens, in order. A token that strips takes
  /// the white space beside it with it.
  template <class OnText, class OnToken> void split(std::string_view text, OnText on_text, OnToken on_token) const {
    size_t done = 0;
    const TokenizerJson::AddedToken* token = nullptr;
    for (size_t at = 0; (token = find(text, at)) != nullptr;) {
      size_t begin = at, end = at += token->content.size();
      if (token->strips_left) { begin = std::max(done, trim_end(text, begin)); }
      if (token->strips_right) { end = trim_begin(text, end); }
      if (done < begin) { on_text(text.substr(done, begin - done)); }
      on_token(token->id);
      done = end;
    }
    if (done < text.size()) { on_text(text.substr(done)); }
  }

 private:
  /// The first token at or behind `at`, and its place; null when there is none.
  const TokenizerJson::AddedToken* find(std::string_view text, size_t& at) const;
  const TokenizerJson::AddedToken* longest(std::string_view text) const;
  static size_t trim_end(std::string_view text, size_t end);      // where the white space before `end` begins
  static size_t trim_begin(std::string_view text, size_t begin);  // where the white space at `begin` ends

  std::vector<TokenizerJson::AddedToken> tokens_;  // by content
  std::array<bool, 256> begins_{};                 // bytes that tokens begin with
};

}  // namespace hebb
