#pragma once
#include <cstdint>
#include <string>

#include "core/json.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"

namespace hebb {

/// The tokenizer.json with which the library tokenizers gives this tokenizer's ids and text; its post-processor puts
/// BOS in front of a text where `tokenizer` does. A tokenizer.json stays as it is, but for that.
/// There, special pieces that a text spells become their ids.
/// Errors: DataError with the reason, for a SentencePiece model that such a file cannot express exactly.
std::string tokenizer_json_of(const Tokenizer& tokenizer);

/// Why no tokenizer.json gives the ids of a SentencePiece model, or "".
std::string tokenizer_json_obstacle(const SentencePieceModel& model);

/// tokenizer_config.json of transformers: class, special tokens, and the longest text in tokens.
Json tokenizer_config_of(const Tokenizer& tokenizer, int64_t max_length);

/// Whether the post-processor of a tokenizer.json puts special tokens around a text.
bool adds_special_tokens(const Json& tokenizer_json);

}  // namespace hebb
