#include "data/shards/checksum_pass.h"

#include <algorithm>

namespace hebb {

ChecksumPass::ChecksumPass(const std::vector<const Shard*>& shards) {
  std::copy_if(shards.begin(), shards.end(), std::back_inserter(shards_),
               [](const Shard* shard) { return shard->stored_crc().has_value(); });
}

void ChecksumPass::advance(int64_t bytes) {
  while (bytes > 0 && !is_done()) {
    const Shard& shard = *shards_[shard_];
    const int64_t width = token_width(shard.token_type());
    const int64_t count = std::min(shard.tokens() - token_, bytes / width + 1);
    crc_ = shard.continue_crc(token_, count, crc_);
    token_ += count;
    bytes -= count * width;
    if (token_ == shard.tokens()) {
      shard.require_crc(crc_);
      ++shard_;
      token_ = 0;
      crc_ = 0;
    }
  }
}

}  // namespace hebb
