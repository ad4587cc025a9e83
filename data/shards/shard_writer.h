#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"

namespace hebb {

enum class DatasetSplit { train, validation };

struct ShardWriterOptions {
  fs::path directory = {};                        // created if it does not exist
  int64_t vocab_size = 0;                         // uint16 tokens up to 65,536, uint32 above
  int32_t bos = -1, eos = -1;                     // ids, -1 = the tokenizer has none
  uint64_t tokenizer_hash = 0;                    // fnv1a64 of the model file ("bytes": of that word), 0 = unknown
  Json tokenizer = {};                            // "tokenizer" object of dataset.json, written as it is
  std::string model_file = {}, model_bytes = {};  // the tokenizer's model beside dataset.json; none when empty
  int64_t shard_tokens = 100'000'000;             // a shard is closed when the next document would exceed this
  bool overwrite = false;                         // replace a data set that is already there
};

/// One shard as dataset.json lists it.
struct ShardEntry {
  std::string file;  // relative to the folder of dataset.json
  int64_t tokens = 0, documents = 0;
  uint32_t crc32 = 0;  // of the token bytes
};

/// Writes the documents of a data set into train_000000.bin/.idx, ... and val_000000.bin/.idx, ... and
/// at the end dataset.json, which lists the train shards (docs/formats/shards.md).
/// Everything is written under "NAME.tmp-PID" names and renamed by finish(), dataset.json last. So an interrupted
/// encode leaves no data set that looks valid. An old one stays whole until all of the new one is on disk. The
/// caller holds the folder's lock: what others have left under such names is removed. Memory: one index of the open
/// shard of each split; tokens go straight to the file. Errors: a folder that holds a data set (without overwrite) is a
/// ConfigError; a token outside [0, vocab_size) or a document above 2^31 - 1 tokens a DataError; a full disk a
/// CheckpointError.
class ShardWriter {
 public:
  struct Summary {
    std::vector<ShardEntry> train, validation;
    int64_t train_tokens = 0, train_documents = 0, validation_tokens = 0, validation_documents = 0;
  };

  explicit ShardWriter(ShardWriterOptions options);
  ~ShardWriter();  // without finish(): removes the temporary files

  /// Appends one document (at least one token, special ids included) to the split's open shard.
  void add_document(std::span<const int32_t> tokens, DatasetSplit split = DatasetSplit::train);
  /// Closes the open shards, renames everything and writes dataset.json. Call once, last.
  Summary finish();

 private:
  class OpenShard;
  struct Stream {
    std::string prefix;
    std::unique_ptr<OpenShard> open;
    std::vector<ShardEntry> closed;
  };
  void close_shard(Stream& stream);
  Json description(const Summary& summary) const;  // dataset.json
  void publish();
  fs::path temporary(const std::string& name) const;

  ShardWriterOptions options_;
  Stream train_, validation_;
  bool finished_ = false;
};

}  // namespace hebb
