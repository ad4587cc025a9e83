#pragma once
// What becomes of the data of a run (docs/ladders.md, Data).
#include <string>

#include "study/ladder/shrink_sizes.h"

namespace hebb {

struct ShrinkDataOptions {
  ShrinkScale scale;
  std::string corpus;  // replaces token files; empty: they stay
};

/// Whether training or validation reads token files.
bool uses_files(const Json& data);

/// Tokens that documents of the corpus must have for the packing of a run's token files; 0: any.
int64_t needed_document_tokens(const Json& data, int64_t sequence_length);

/// Shrinks `config.data` and `config.model.vocab_size`: token files become the corpus, tasks become shorter.
/// `config.train.sequence_length` is shrunk already.
void shrink_data(Json& config, const ShrinkDataOptions& options);

}  // namespace hebb
