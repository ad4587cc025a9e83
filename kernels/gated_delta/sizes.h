#pragma once
#include "kernels/gated_delta/chunk_grid.h"

// Sizes of the chunked delta rule, the same on both devices.
namespace hebb {

struct DeltaSizes {
  int64_t batch, length, key_heads, value_heads, key_dim, value_dim;

  DeltaSizes(const Tensor& k, const Tensor& v)
      : batch(k.size(0)),
        length(k.size(1)),
        key_heads(k.size(2)),
        value_heads(v.size(2)),
        key_dim(k.size(3)),
        value_dim(v.size(3)) {}
  /// Value heads of a key head.
  constexpr int64_t group() const { return value_heads / key_heads; }
  constexpr int64_t state() const { return key_dim * value_dim; }
};

/// A line of ChunkGrid::chunks.
struct DeltaChunk {
  int64_t token, length, state;
};

}  // namespace hebb
