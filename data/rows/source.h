#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/shards/shard.h"

namespace hebb {

/// The shards of one source as one sequence of documents and tokens (docs/data.md, Rows). Positions
/// are token numbers over all shards. Memory: O(shards) beside the maps.
class TokenSource {
 public:
  /// Errors: DataError when there is no token at all.
  TokenSource(std::string path, std::vector<Shard> shards);

  const std::string& path() const { return path_; }
  const std::vector<Shard>& shards() const { return shards_; }
  int64_t tokens() const { return token_starts_.back(); }
  int64_t documents() const { return document_starts_.back(); }

  /// Position of document d's first token, d = 0 .. documents(); the last is tokens().
  int64_t document_start(int64_t d) const;
  /// Copies tokens [begin, begin + count), which may lie in several shards. A token outside
  /// [0, vocab_size) is a DataError naming file and byte offset.
  void read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const;

  /// fnv1a64 over the shards' (token count u64, CRC-32 u32) in order (docs/data.md, Batches and ranks). Files that
  /// store no CRC are read once for it.
  uint64_t fingerprint() const;

 private:
  std::string path_;
  std::vector<Shard> shards_;
  std::vector<int64_t> token_starts_, document_starts_;  // per shard, and the totals
  mutable std::optional<uint64_t> fingerprint_;
};

/// Ids mean the same as with the tokenizer of this hash, where both are known (not 0). Errors: DataError.
void require_tokenizer(const Shard& shard, uint64_t hash);

}  // namespace hebb
