#pragma once
#include "kernels/attention/scratch.h"
#include "kernels/dictionary/parts.h"
#include "kernels/ovq/ovq.h"

namespace hebb {

/// Queries that the CPU reads out together.
constexpr int64_t kOvqTile = 32;

struct OvqForwardScratch {
  Tensor logits;  // [B, K, kOvqTile, R + L], on the CPU
  Tensor work;    // [ovq_forward_work(...)] of 4 bytes, on a GPU: see its kernels
  bool on_tensor_cores = false;
};

struct OvqBackwardScratch {
  OvqDictionary dictionary;    // with room for OvqBackward::room
  OvqDictionary d_dictionary;  // gradients of keys and values
  Tensor versions;             // [B, K, T, D + Dv]
  Tensor inverse_norms;        // [B, K, T, 2]: of keys and values of the versions
  Tensor previous;             // [B, K, T] i32: the version before, on the CPU
  Tensor latest;               // [B, K, R] i32: the slot's version, on the CPU
  Tensor probabilities;        // [B, K, 2, kOvqTile, R + L], with their gradients, on the CPU
  Tensor work;                 // [ovq_backward_work(...)] of 4 bytes, on a GPU: see its kernels
  bool on_tensor_cores = false;
};

/// Steps (a chunk of every row) that the GPU does as one group: what changes in them is kept until all are done. Rows
/// of n chunks have n + 1, the last for documents that begin off the grid.
constexpr int64_t ovq_group(int64_t length, int64_t chunk) {
  constexpr int64_t kMost = 17;
  const int64_t steps = (length + 2 * chunk - 2) / chunk;
  return steps < kMost ? steps : kMost;
}

/// Blocks that choose the centroids of a chunk, each for all keys, and then each fold some of them in.
constexpr int64_t ovq_folders(int64_t chunk) { return chunk <= 128 ? 8 : chunk <= 512 ? 1024 / chunk : 1; }

/// Elements of 4 bytes that the GPU's kernels need beside the other scratch; q [B, T, H, D], v [B, T, K, Dv].
inline int64_t ovq_work(const Shape& q, const Shape& v, const OvqRule& rule, int64_t room, bool on_tensor_cores) {
  const int64_t units = v[0] * v[2], group = ovq_group(q[1], rule.chunk);
  const int64_t parts = dictionary_parts_work(q, v, rule.chunk, on_tensor_cores ? group : 1, room, on_tensor_cores);
  return q[0] * q[1] * (q[2] + 2) + 8 * q[0] * (q[1] / rule.chunk + 2) + units * group * room + parts + 256;
}
inline int64_t ovq_forward_work(const Shape& q, const Shape& v, const OvqRule& rule, int64_t room,
                                bool on_tensor_cores) {
  const int64_t keys = v[0] * v[2] * rule.chunk, tiles = room / 64 + 1;
  const int64_t versions = on_tensor_cores ? keys * ovq_group(q[1], rule.chunk) : 0;
  return ovq_work(q, v, rule, room, on_tensor_cores) + keys * (3 * tiles + 4 * ovq_folders(rule.chunk)) + 2 * v[2] +
         versions * ((q[3] + v[3]) / 2 + 1);
}
inline int64_t ovq_backward_work(const Shape& q, const Shape& v, const OvqRule& rule, int64_t room,
                                 bool on_tensor_cores) {
  const int64_t versions = q[0] * q[1] * v[2], copied = on_tensor_cores ? (q[3] + v[3]) / 2 + 1 : 0;
  return ovq_work(q, v, rule, room, on_tensor_cores) + attention_statistics(q, on_tensor_cores) +
         versions * (copied + 1);
}

}  // namespace hebb
