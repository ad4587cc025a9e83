#pragma once
// The `data` section of a run configuration (docs/formats/shards.md; docs/tasks.md).
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/fields.h"
#include "data/rows/packing.h"
#include "data/shards/shard.h"
#include "data/tasks/synthetic_tasks.h"

namespace hebb {

/// How documents become rows, as written; a source takes what it does not set from `data`.
struct PackingConfig {
  std::optional<std::string> packing, shuffle, document_rows, tail, split;
  std::optional<int64_t> min_document_tokens, split_token;
  std::optional<bool> mask_cross_document_targets;
};

/// A synthetic source as written; the optional keys depend on the run.
struct SyntheticConfig {
  SyntheticTask task;  // seed, lengths, length_block and vocab are filled by resolve_task()
  std::optional<uint64_t> seed;
  std::optional<int64_t> length, length_block, vocab;
  std::vector<int64_t> lengths;
};

struct SourceConfig {
  std::string type = "shards";  // "shards" or "synthetic"
  std::string path, format = "auto";
  Json weight = Json(1.0);  // a positive number or "rows"
  PackingConfig packing;
  SyntheticConfig synthetic;
};

struct ValidationConfig {
  std::string name;
  std::optional<int64_t> max_rows;  // all rows when absent (required for synthetic sources)
  bool allow_training_data = false;
  SourceConfig source;  // without weight and shuffle; a folder means its val_*.bin
};

struct DataConfig {
  std::optional<uint64_t> seed;  // default: train.seed
  std::vector<SourceConfig> sources;
  std::vector<ValidationConfig> validation;
  PackingConfig packing;  // for sources that do not set their own
  Json tokenizer;         // null: that of the first source
  /// Where the value at a path of the run configuration was written, "FILE:LINE:COLUMN" or ""; may be empty.
  std::function<std::string(const std::string& path)> origin_of;

  /// A path ("data.sources.0.path") with where it was written, as messages begin.
  std::string place(const std::string& path) const;
  /// Calls `open`, whose errors about files begin with the place of `path` where it is known.
  template <class Open> auto at(const std::string& path, const Open& open) const {
    try {
      return open();
    } catch (const MissingFileError& error) {
      if (place(path) == path) { throw; }
      throw MissingFileError(place(path), error.what());
    } catch (const DataError& error) {
      if (place(path) == path) { throw; }
      throw DataError(place(path), error.what());
    }
  }
};

void fields(Fields& f, SourceConfig& config);
void fields(Fields& f, ValidationConfig& config);
void fields(Fields& f, DataConfig& config);

/// The source's own keys, then those of `data`, then the defaults.
PackingOptions resolve_packing(const PackingConfig& own, const PackingConfig& inherited, bool document_mask);
ShardOptions resolve_shard_options(const SourceConfig& source, const PackingConfig& inherited);

/// Fills what a synthetic source takes from the run and checks it; `where` is its path in the configuration.
/// Errors: ConfigError (options of the task, lengths above sequence_length).
SyntheticTask resolve_task(const SyntheticConfig& config, const std::string& where, uint64_t seed,
                           int64_t sequence_length, int64_t batch_size);

}  // namespace hebb
