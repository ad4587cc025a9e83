#pragma once
#include <algorithm>

#include "kernels/attention/attention.h"

namespace hebb {

/// Parts, of at least 64 slots, into which a GPU divides a dictionary of up to `slots` slots: then few queries fill the
/// device. queries: of a chunk. units: rows of the batch, kv heads and chunks that are read together. A block has 64
/// queries, on tensor cores 128. A matter of speed, from sizes alone.
constexpr int64_t dictionary_parts(int64_t units, int64_t queries, int64_t slots, bool on_tensor_cores) {
  constexpr int64_t kBlocks = 264, kMost = 16, kTile = 64;  // two blocks on each of the H200's multiprocessors
  const int64_t own = on_tensor_cores ? 128 : 64, wanted = kBlocks / (units * ((queries + own - 1) / own)),
                tiles = (slots + kTile - 1) / kTile;
  const int64_t parts = wanted < tiles ? wanted : tiles;
  return parts < 1 ? 1 : parts < kMost ? parts : kMost;
}

/// Elements of fp32 scratch for them, forward and (on tensor cores) backward; q [B, T, H, D], v [B, T, K, Dv]; steps:
/// chunks of a row that are read together.
inline int64_t dictionary_parts_work(const Shape& q, const Shape& v, int64_t chunk, int64_t steps, int64_t slots,
                                     bool on_tensor_cores) {
  const int64_t units = v[0] * v[2] * steps, queries = (chunk < q[1] ? chunk : q[1]) * (q[2] / v[2]);
  const int64_t parts = dictionary_parts(units, queries, slots, on_tensor_cores);
  return parts == 1 ? 0 : parts * units * queries * std::max(v[3] + 2, on_tensor_cores ? q[3] : 0);
}

}  // namespace hebb
