#pragma once
#include <cstdint>
#include <string>

#include "core/progress.h"
#include "data/text/text_input.h"

namespace hebb {

struct TrainTokenizerOptions {
  TextInputOptions input;
  std::string model_type = "bpe";      // or "unigram"
  int64_t vocab_size = 32'000;         // with 3 special and 256 byte tokens
  bool fits_vocab = false;             // fewer where the text gives no more; else that is an error
  uint64_t train_bytes = 100'000'000;  // text is sampled up to the document that reaches this
  uint64_t seed = 0;                   // of the sample
  int threads = 1;                     // 1 to 128; stored in the model: unigram training may depend on it
};

struct TrainedTokenizer {
  std::string model;                  // bytes of the .model file
  int64_t vocab_size = 0;             // of the model
  TextCounts input;                   // the whole input
  uint64_t documents = 0, bytes = 0;  // of the sample
  uint64_t lines = 0, cut_lines = 0;  // sentences of the sample; how many were cut for their length
  double seconds = 0;                 // of the training itself
};

/// Trains a SentencePiece model: byte fallback, character coverage 0.9995, unk 0, bos 1, eos 2, no pad,
/// digits as single tokens, identity normalisation, no dummy prefix, white space kept. Documents are
/// sampled in the order P(n; seed, "spm", 0) and fed in document order, line by line; lines above
/// 16 KiB are cut at white space. Reads the input twice. Memory: the sample, and 4 bytes a document.
/// Errors: ConfigError for a vocabulary that does not fit the text or this build; DataError for the
/// input (TextReader) and for input without text.
/// Source: docs/verbs/data.md.
TrainedTokenizer train_tokenizer(const TrainTokenizerOptions& options, Progress& progress);

}  // namespace hebb
