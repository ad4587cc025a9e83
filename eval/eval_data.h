#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "data/rows/source.h"
#include "data/tokenizer/tokenizer.h"

namespace hebb {

/// The documents and tokens of files as an evaluation reads them.
class EvalTokens {
 public:
  explicit EvalTokens(TokenSource source) : source_(std::move(source)), is_checked_(source_.shards().size()) {}

  int64_t tokens() const { return source_.tokens(); }
  int64_t documents() const { return source_.documents(); }
  /// As TokenSource::document_start.
  int64_t document_start(int64_t d) const { return source_.document_start(d); }
  int64_t document_tokens(int64_t d) const { return document_start(d + 1) - document_start(d); }
  /// As TokenSource::read. The checksum of a file is compared when the first of its tokens are read. Errors: DataError.
  void read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const;

 private:
  TokenSource source_;
  mutable std::vector<bool> is_checked_;  // by file
};

/// Token files of an evaluation.
struct EvalData {
  std::string path, format = "auto", split = "after";
  std::optional<int64_t> split_token;

  /// `tokenizer`: that of the model, or null where it is not known.
  /// Errors: MissingFileError, DataError (tokens of another tokenizer, too).
  EvalTokens open(const Tokenizer* tokenizer) const;
};
void fields(Fields& f, EvalData& d);

/// Tokens of document d, at most `limit`.
std::vector<int32_t> read_document(const EvalTokens& source, int64_t d, int64_t limit, int64_t vocab);

}  // namespace hebb
