#pragma once
#include "kernels/attention/scratch.h"
#include "kernels/dictionary/parts.h"
#include "kernels/ovq/ovq.h"

namespace hebb {

/// Queries that the CPU reads out together.
constexpr int64_t kOvqTile = 32;

struct OvqForwardScratch {
  Tensor logits;  // [B, K, kOvqTile, R + L], on the CPU
  // On a GPU:
  Tensor lo, hi;                    // [B, T] i32: tokens of the query's own chunk
  Tensor own_lse;                   // [B, T, H]: of them
  Tensor steps;                     // [B, steps, kStepWords] i32
  Tensor partial;                   // [B, K, tiles of slots, L, kScoreWords]: scores of a chunk's keys
  Tensor order;                     // [B, K, folders, L, 2] i32: keys to sort by, of 8 bytes
  Tensor ids;                       // [B, K, folders, L] i32
  Tensor founds;                    // [B, K, folders, words of L bits] i32
  Tensor stream_keys;               // [K, 2] i32: of random numbers
  Tensor parts;                     // plan_dictionary_parts(...)
  Tensor table;                     // [B, K, group, R] i32: versions of slots within a group of steps; or undefined
  Tensor key_copies, value_copies;  // [B, K, group L, D or Dv] bf16: of the versions
  Tensor log_counts;                // [B, K, group L]: of the versions
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
  // On a GPU:
  Tensor lo, hi;                    // [B, T] i32: tokens of the query's own chunk
  Tensor statistics;                // of AttentionBackwardScratch
  Tensor steps;                     // [B, steps, kStepWords] i32
  Tensor table;                     // [B, K, group, R] i32: versions of slots within a group of steps
  Tensor counts;                    // [B, K, T] i32: of the versions
  Tensor key_copies, value_copies;  // [B, K, T, D or Dv] bf16: of the versions, on tensor cores
  Tensor log_counts;                // [B, K, T]: of the versions, on tensor cores
  Tensor parts;                     // plan_dictionary_parts(...), on tensor cores
  bool on_tensor_cores = false;
};

/// Blocks that choose the centroids of a chunk, each for all keys, and then each fold some of them in.
constexpr int64_t ovq_folders(int64_t chunk) { return chunk <= 128 ? 8 : chunk <= 512 ? 1024 / chunk : 1; }

}  // namespace hebb
