#pragma once
#include <cstdint>
#include <string>

#include "core/json.h"
#include "core/progress.h"
#include "data/shards/shard_writer.h"
#include "data/text/text_input.h"
#include "data/tokenizer/tokenizer.h"

namespace hebb {

struct EncodeOptions {
  TextInputOptions input;
  TokenizerConfig tokenizer;
  fs::path out;  // folder of the data set
  int64_t shard_tokens = 100'000'000;
  // The validation part, val_*; one of:
  double val_fraction = 0;     // share of documents, drawn from (seed, "split", d)
  uint64_t val_documents = 0;  // the last so many documents
  uint64_t val_tokens = 0;     // the last so many tokens; a document may be cut
  double val_share = 0;        // the last tokens, so large a share of all
  uint64_t seed = 0;
  int workers = 0;  // encoding threads; 0 = hebb::threads()
  bool overwrite = false;
};

struct EncodeReport {
  TextCounts input;
  ShardWriter::Summary output;
  uint64_t visible_space_documents = 0;  // hold U+2581, which SentencePiece returns as a space
  int workers = 0;
  double seconds = 0;
  std::vector<std::string> warnings = {};  // of a validation part or a separator that few would want

  int64_t tokens() const { return output.train_tokens + output.validation_tokens; }
  double megabytes_per_second() const;  // of text, 10^6 bytes
  std::string text() const;             // lines for a terminal
  Json json() const;
};

/// Turns text into a data set: train_*.bin/.idx, val_*.bin/.idx, dataset.json and a copy of the
/// tokenizer's model (docs/verbs/data.md). Threads: one reads, `workers` check and encode,
/// the calling one writes in document order, so the files do not depend on `workers`. Document d of
/// the split counts the documents that are kept. Memory: a few MiB per worker beside the largest
/// documents in work, and the last documents or tokens for validation (4 bytes a token).
/// Nothing looks finished before everything is: see ShardWriter.
/// Errors: ConfigError for options; DataError for the input, the first one in document order, and for
/// input without documents (or without any for training); CheckpointError for the output.
EncodeReport encode_corpus(const EncodeOptions& options, Progress& progress);

}  // namespace hebb
