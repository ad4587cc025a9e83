#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/rows/data_config.h"

namespace hebb {

/// Where one row of a batch goes: T values each.
struct RowView {
  int32_t *inputs, *targets, *doc_ids;
};

/// What a source needs to know of the run.
struct RowSourceContext {
  uint64_t seed = 0;  // data.seed
  int64_t sequence_length = 0, batch_size = 0, vocab_size = 0;
  bool document_mask = false;
  bool is_shuffled = true;  // validation reads in order
};

/// An endless, randomly accessible sequence of rows: token files with packing and order, or a
/// synthetic task. Used by one thread at a time.
class RowSource {
 public:
  virtual ~RowSource() = default;
  /// Number of targets of row k that are not -100; writes the row where `out` points, if it does.
  /// Errors: DataError (token outside the vocabulary, with file and byte offset).
  virtual int64_t row(int64_t k, const RowView* out) = 0;
  /// Rows of one epoch; nothing for a source without end.
  virtual std::optional<int64_t> rows_per_epoch() const = 0;
  /// Path or task, for messages.
  virtual std::string name() const = 0;
  /// Hash of all that the rows depend on beside packing and seed: resume compares it (docs/data.md, Batches and ranks).
  virtual uint64_t fingerprint() const = 0;
  virtual int64_t tokens() const { return 0; }
  virtual int64_t documents() const { return 0; }
  /// Files whose checksum the first pass verifies.
  virtual std::vector<const Shard*> shards() const { return {}; }
};

/// Ids mean the same in all files: a file that names another tokenizer than `hash` is a DataError. 0 takes the hash of
/// the first file that names one.
void require_tokenizer(const RowSource& source, uint64_t& hash);

/// Opens the files of a source, or sets up its generator. `where` is its path in the configuration
/// ("data.sources.1"), `index` its number there; what `data` says of packing holds where the source does not.
/// Errors: DataError (files), ConfigError (options, tokens of the task above vocab_size, no complete row).
std::unique_ptr<RowSource> make_row_source(const SourceConfig& config, const DataConfig& data, const std::string& where,
                                           int64_t index, const RowSourceContext& context);

}  // namespace hebb
