#pragma once
#include <cstdint>
#include <vector>

#include "data/shards/shard.h"

namespace hebb {

/// The first pass over the shards of a run, which compares their tokens with the stored CRC-32
/// (docs/formats/shards.md). It goes on in bounded pieces, so that a large data set does not delay the
/// first step, and in file order, so that a damaged file stops every run at the same batch.
class ChecksumPass {
 public:
  ChecksumPass() = default;
  /// Shards without a stored CRC are left out. The shards must outlive the pass.
  explicit ChecksumPass(const std::vector<const Shard*>& shards);

  bool is_done() const { return shard_ == shards_.size(); }
  /// Reads about `bytes` more. Throws the DataError of Shard::require_crc().
  void advance(int64_t bytes);

 private:
  std::vector<const Shard*> shards_;
  size_t shard_ = 0;
  int64_t token_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace hebb
