#pragma once
#include <algorithm>

#include "core/workspace.h"
#include "kernels/attention/attention.h"

namespace hebb {

/// Words of 4 bytes in what a GPU keeps of a step of a row (slots::Step), and of the score of an item (slots::Score).
constexpr int64_t kStepWords = 5, kScoreWords = 3;

/// Slots of a tile, and channels of a slice, of the kernels without tensor cores.
constexpr int64_t kDictionaryTile = 64, kDictionarySlice = 256;

/// Steps of a row on a GPU. Chunk starts lie in one step where they are less than a chunk apart: token t is of step
/// ceil(t / chunk). A row of n chunks has n + 1 steps, the last for documents that begin off the grid.
constexpr int64_t dictionary_steps(int64_t length, int64_t chunk) { return (length - 1 + chunk - 1) / chunk + 1; }

/// Of those, the steps that tensor cores read together, a group. What changes inside it is kept in old versions until
/// all are done, so it has a limit: rows of 16 chunks are one group.
constexpr int64_t dictionary_group(int64_t length, int64_t chunk) {
  constexpr int64_t kMost = 17;
  return std::min(kMost, dictionary_steps(length, chunk));
}

/// Parts, of at least 64 slots, into which a GPU divides a dictionary of up to `slots` slots: then few queries fill the
/// device. queries: of a chunk. units: rows of the batch, kv heads and chunks that are read together. A block has 64
/// queries, on tensor cores 128. A matter of speed, from sizes alone.
constexpr int64_t dictionary_parts(int64_t units, int64_t queries, int64_t slots, bool on_tensor_cores) {
  constexpr int64_t kBlocks = 264;  // two on each of the H200's multiprocessors
  constexpr int64_t kMost = 16;     // a part's sums are scratch of the size of the result
  const int64_t own = on_tensor_cores ? 128 : 64, wanted = kBlocks / (units * ((queries + own - 1) / own)),
                tiles = (slots + kDictionaryTile - 1) / kDictionaryTile;
  const int64_t parts = wanted < tiles ? wanted : tiles;
  return parts < 1 ? 1 : parts < kMost ? parts : kMost;
}

/// Their scratch [parts, units, queries, width] f32, forward and (on tensor cores) backward; undefined for one part. q
/// [B, T, H, D], v [B, T, K, Dv]; steps: chunks of a row that are read together.
inline Tensor plan_dictionary_parts(Workspace& workspace, const Shape& q, const Shape& v, int64_t chunk, int64_t steps,
                                    int64_t slots, bool on_tensor_cores) {
  const int64_t units = v[0] * v[2] * steps, queries = std::min(chunk, q[1]) * (q[2] / v[2]);
  const int64_t parts = dictionary_parts(units, queries, slots, on_tensor_cores);
  if (parts == 1) { return {}; }
  return workspace.tensor({parts, units, queries, std::max(v[3] + 2, on_tensor_cores ? q[3] : 0)}, DType::f32,
                          "parts of the readout");
}

}  // namespace hebb
