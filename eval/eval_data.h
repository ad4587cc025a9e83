#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "data/rows/source.h"
#include "data/tokenizer/tokenizer.h"

namespace hebb {

/// Token files of an evaluation.
struct EvalData {
  std::string path, format = "auto", split = "after";
  std::optional<int64_t> split_token;

  /// `tokenizer`: that of the model, or null where it is not known.
  /// Errors: MissingFileError, DataError (tokens of another tokenizer, too).
  TokenSource open(const Tokenizer* tokenizer) const;
};
void fields(Fields& f, EvalData& d);

/// Tokens of document d, at most `limit`.
std::vector<int32_t> read_document(const TokenSource& source, int64_t d, int64_t limit, int64_t vocab);

}  // namespace hebb
