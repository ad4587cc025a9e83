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
  // On a GPU:
  Tensor lo, hi;         // [B, T] i32: tokens of each query's window
  Tensor own_lse;        // [B, T, H]: of the windows
  Tensor heated;         // as q, times the window's temperature; undefined without one
  Tensor steps;          // [B, steps, kStepWords] i32
  Tensor partial;        // [B, K, tiles of slots, C, kScoreWords]: scores of a chunk's keys
  Tensor scores;         // [B, K, C, kScoreWords]: against the slots before the step
  Tensor gates;          // [B, K, C]
  Tensor codes, founds;  // [B, K, C] i32
  Tensor key_copies;     // [B, K, C, D], of memory keys; bf16 only
  Tensor parts;          // plan_dictionary_parts(...)
  Tensor old_table;      // [B, K, group, R] i32: versions of slots within a group of steps; undefined without one
  Tensor old_keys, old_values;  // [B, K, group C, D or Dv] bf16
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
  // On a GPU:
  Tensor lo, hi;                  // [B, T] i32: tokens of each query's window
  Tensor statistics;              // of AttentionBackwardScratch
  Tensor heated, d_heated, sums;  // as q, as q, [B, T, H]; undefined where the window has no temperature
  // And where slots are read:
  Tensor steps;        // [B, steps, kStepWords] i32
  Tensor d_norm;       // [B, K, C, 2 D]
  Tensor radii;        // [B, K, T]: of the versions
  Tensor counts;       // [B, K, T] i32: of the versions
  Tensor memory_keys;  // [B, K, C, D]
  Tensor gates;        // [B, K, C]
  Tensor temp_sums;    // [slices of D, B, T, H]; undefined if nobody wants d_state_temp
  Tensor parts;        // plan_dictionary_parts(...), on tensor cores
  bool on_tensor_cores = false;
};

/// Steps (a chunk of every row) that the GPU reads in one launch. Where every step changes all that is read there is no
/// group.
inline int64_t kvm_group(int64_t length, const KvmRule& rule, bool on_tensor_cores) {
  const bool groups = on_tensor_cores && rule.value_norm != KvmValueNorm::updates;
  return groups ? dictionary_group(length, rule.chunk) : 1;
}

}  // namespace hebb
