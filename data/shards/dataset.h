#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "data/shards/shard.h"
#include "data/shards/shard_writer.h"

namespace hebb {

/// What dataset.json says (docs/formats/shards.md).
struct Dataset {
  fs::path file;      // the dataset.json itself
  std::string dtype;  // "u16" or "u32"
  int64_t vocab_size = 0;
  Json tokenizer;  // as written; null when absent
  uint64_t tokenizer_hash = 0;
  std::vector<ShardEntry> shards;
  int64_t total_tokens = 0, total_documents = 0;

  fs::path shard_path(size_t i) const { return file.parent_path() / shards[i].file; }
};

/// The dataset.json that PATH names (the file or its folder), or nothing when PATH is something else.
std::optional<fs::path> find_dataset(const fs::path& path);

/// Reads dataset.json; unknown keys, wrong types and totals that are not the sums over the shards are
/// DataErrors with the position in the file.
Dataset read_dataset(const fs::path& dataset_json);

/// The dataset.json that a source's path belongs to, for its tokenizer: that of the folder, or the one beside the
/// files that the path names. Nothing when there is none (llm.c and headerless files).
std::optional<fs::path> dataset_of_source(const std::string& path);

/// The files of held-out data: a data set's folder (or its dataset.json) stands for its val_*.bin, every other PATH for
/// itself. `where`: the key that PATH belongs to. Errors: DataError (no such shards in the folder).
std::string held_out_path(const std::string& path, const std::string& where);

/// Opens shard i and checks it against its entry: dtype, vocabulary, tokenizer hash, tokens,
/// documents and CRC-32. Errors: DataError naming dataset.json and the shard.
Shard open_dataset_shard(const Dataset& dataset, size_t i);

/// Opens the files of a data source: a folder with dataset.json, one file, or a pattern (files in
/// byte order). Errors: DataError (no file, corrupt file, empty data set, format other than "auto" with a folder).
std::vector<Shard> open_shards(const std::string& path, const ShardOptions& options);

}  // namespace hebb
