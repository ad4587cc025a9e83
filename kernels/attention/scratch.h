#pragma once
#include "kernels/attention/attention.h"

namespace hebb {

/// With few queries a key space (decoding) a tile of queries would be mostly empty, and there are few tiles. Up to so
/// many stacked rows, the queries of a kv head, go over blocks of keys that are read side by side.
inline constexpr int64_t kFewRowsOnCpu = 3;        // more rows share in a tile what they read of the keys
inline constexpr int kFewRowsOnGpu = 16;           // weights of a block of keys: 1 KB of shared memory each
inline constexpr int kFewKeys = 256;               // of a block: one for each thread of a GPU's
inline constexpr int64_t kFewChannelsOnGpu = 512;  // of the queries, which are in shared memory: 2 KB each

/// What few queries find in each block of keys.
struct AttentionForwardScratch {
  Tensor partial;  // [B T H, blocks, Dv + 2]: maximum, sum and weighted values of a block; undefined for many queries
  bool on_tensor_cores = false;
};

/// What tensor cores read of each query, in the order of lse.
struct AttentionBackwardScratch {
  Tensor statistics;  // [2 B T H] f32: lse, then delta; undefined without tensor cores
  bool on_tensor_cores = false;
};

/// Elements of AttentionBackwardScratch::statistics: two for each lse where tensor cores work, else 0.
constexpr int64_t attention_statistics(const Shape& q, bool on_tensor_cores) {
  return on_tensor_cores ? 2 * q[0] * q[1] * q[2] : 0;
}

}  // namespace hebb
