#include "layers/fast/pairs.h"

namespace hebb {

std::vector<int32_t> row_targets(const Rows& rows, int64_t chunk, int64_t lookahead) {
  std::vector<int32_t> targets(static_cast<size_t>(rows.tokens()), -1);
  for (int64_t b = 0; b < rows.batch(); ++b) {
    for (int64_t t = 0; t + lookahead < rows.length(); ++t) {
      const int64_t to = b * rows.length() + t + lookahead;
      if (t / chunk == (t + lookahead) / chunk && rows.host_doc_start()[static_cast<size_t>(to)] <= t) {
        targets[static_cast<size_t>(b * rows.length() + t)] = static_cast<int32_t>(to);
      }
    }
  }
  return targets;
}

int64_t pairs_of(const std::vector<int32_t>& targets, const FastChunk& chunk) {
  int64_t count = 0;
  for (int64_t r = 0; r < chunk.tokens(); ++r) { count += targets[static_cast<size_t>(chunk.token(r))] >= 0 ? 1 : 0; }
  return count;
}

}  // namespace hebb
