#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace hebb {

/// What stands before a text (docs/evaluations/likelihood.md, Context and continuation): BOS where the tokenizer adds
/// it; before an empty text EOS, or BOS where there is no EOS; else nothing.
std::vector<int32_t> prefix_ids(const Tokenizer& tokenizer, bool text_is_empty);

/// The ids of a prompt, with what stands before it. Empty only when there is neither text nor BOS nor EOS.
std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view prompt);

/// A continuation after its context, cut for a model.
struct ScoredText {
  std::vector<int32_t> ids;  // inputs are all but the last
  int64_t scored = 0;        // the last so many ids are predicted
  int64_t cut = 0;           // ids that were left out at the start
  /// The continuation is a part of the context's last token: there is nothing to score.
  bool is_merged() const { return scored == 0; }
};

/// A pair of docs/evaluations/likelihood.md, Context and continuation: white space at the end of the context
/// belongs to the continuation; of prefix, context and continuation the last max_length + 1 ids are kept. A first token
/// without a prefix is not scored. Errors: DataError at `where` for a continuation whose only token is such a first
/// one, or of more than max_length tokens.
ScoredText encode_pair(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                       int64_t max_length, std::string_view where);

}  // namespace hebb
