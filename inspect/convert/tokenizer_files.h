#pragma once
#include <string>
#include <vector>

#include "core/json.h"
#include "data/tokenizer/tokenizer.h"
#include "inspect/convert/new_folder.h"

namespace hebb {

/// What a conversion has written of a tokenizer.
struct TokenizerFiles {
  std::vector<std::string> names;
  std::vector<std::string> notes;  // what the user should know
  Json config;                     // data.tokenizer of hebb; null where there is none that hebb reads
};

/// Writes tokenizer.json and tokenizer_config.json of transformers, and a SentencePiece model as tokenizer.model.
/// max_length: in tokens. A model that no tokenizer.json expresses exactly is kept as sentencepiece.model alone, with a
/// note: from a tokenizer.model transformers would make another tokenizer.
TokenizerFiles export_tokenizer(const Tokenizer& tokenizer, int64_t max_length, NewFolder& folder);

/// Copies the tokenizer of a foreign folder: tokenizer.json where hebb reads it, else the SentencePiece model. Without
/// one that hebb reads, a note says what is missing. vocab_size: of the model.
TokenizerFiles import_tokenizer(const fs::path& source, int64_t vocab_size, NewFolder& folder);

}  // namespace hebb
