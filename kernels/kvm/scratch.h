#pragma once
#include "kernels/attention/scratch.h"
#include "kernels/dictionary/parts.h"
#include "kernels/kvm/kvm.h"

namespace hebb {

/// Queries that the CPU reads out together.
constexpr int64_t kKvmTile = 64;

struct KvmForwardScratch {
  Tensor memory_keys;  // [B, K, C, D]
  Tensor logits;       // [B, K, kKvmTile, R + W C], on the CPU
  Tensor work;         // [kvm_forward_work(...)] of 4 bytes, on a GPU: see its kernels
  bool on_tensor_cores = false;
};

struct KvmBackwardScratch {
  KvmSlots slots;        // with room for KvmBackward::room
  KvmSlots d_slots;      // gradients of what the slot's present version was read as, and running ones of its sums
  Tensor versions;       // [B, K, T, D + Dv], T = 1 where no slot is read
  Tensor previous;       // [B, K, T] i32: the version before
  Tensor latest;         // [B, K, R] i32: the slot's version
  Tensor probabilities;  // [B, K, 2, kKvmTile, R + W C], with their gradients, on the CPU
  Tensor partial;        // [B, K, 2 D + 2 H / K]: sums of parameters' gradients, on the CPU
  Tensor work;           // [kvm_backward_work(...)] of 4 bytes, on a GPU: see its kernels
  bool on_tensor_cores = false;
};

/// Steps (a chunk of every row) that the GPU reads in one launch on tensor cores, a group. Slots that change inside it
/// are kept in old versions until all are done. Where every step changes all that is read there is no group. Rows of n
/// chunks have n + 1 steps, the last for documents that begin off the grid.
inline int64_t kvm_group(const Shape& q, const KvmRule& rule, bool on_tensor_cores) {
  constexpr int64_t kMost = 17;
  const int64_t steps = (q[1] + 2 * rule.chunk - 2) / rule.chunk;
  const bool groups = on_tensor_cores && rule.value_norm != KvmValueNorm::updates;
  return !groups ? 1 : steps < kMost ? steps : kMost;
}

/// Elements of 4 bytes that the GPU's kernels need beside the other scratch; q [B, T, H, D] of type `dtype`, k [B, T,
/// K, D], v [B, T, K, Dv].
inline int64_t kvm_forward_work(const Shape& q, const Shape& v, const KvmRule& rule, int64_t room, DType dtype,
                                bool on_tensor_cores) {
  const int64_t group = kvm_group(q, rule, on_tensor_cores);
  const int64_t kept = group > 1 ? group * v[0] * v[2] * (room + rule.chunk * ((q[3] + v[3]) / 2)) : 0;
  const int64_t keys = v[0] * v[2] * rule.chunk, tiles = room / 64 + 2;
  return q[0] * q[1] * (q[2] * (q[3] + 1) + 2) + 8 * q[0] * (q[1] / rule.chunk + 2) + keys * (3 * tiles + 3) + 256 +
         (dtype == DType::bf16 ? keys * q[3] / 2 + 1 : 0) + kept +
         dictionary_parts_work(q, v, rule.chunk, group, room, on_tensor_cores);
}
inline int64_t kvm_backward_work(const Shape& q, const Shape& k, const Shape& v, const KvmRule& rule, int64_t room,
                                 bool on_tensor_cores) {
  const int64_t keys = k[0] * k[2] * rule.chunk, slices = q[3] / 256 + 1;
  return q[0] * q[1] * (q[2] * (2 * q[3] + 1 + slices) + 2 * k[2] + 2) + 8 * q[0] * (q[1] / rule.chunk + 2) +
         keys * (3 * q[3] + 1) + 256 + attention_statistics(q, on_tensor_cores) +
         dictionary_parts_work(q, v, rule.chunk, 1, room, on_tensor_cores);
}

}  // namespace hebb
