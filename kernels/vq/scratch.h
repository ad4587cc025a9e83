#pragma once
#include "kernels/dictionary/parts.h"
#include "kernels/vq/vq.h"

namespace hebb {

struct VqKeysBackwardScratch {
  Tensor shares;  // [B, T, K, 2]: how much of e - k each of a key's two codewords gets
  // On a GPU and for d_codes:
  Tensor added;      // [B, T, K, D]: what a key adds to its codeword's gradient
  Tensor key_lines;  // [B, T, K] i32: the codeword's line in the table
  Tensor table;      // [K, N, D]: the sums
};

/// Queries that the CPU reads out together.
inline constexpr int64_t kVqTile = 32;

struct VqReadScratch {
  Tensor own;     // [B, K, chunk, D]: quantized keys of the chunk, on the CPU
  Tensor logits;  // [B, K, kVqTile, N + chunk], on the CPU
  // On a GPU:
  Tensor keys;     // [B, T, K, D]: quantized keys
  Tensor lo, hi;   // [B, T] i32: tokens of the query's own chunk
  Tensor own_lse;  // [B, T, H]: of them
  Tensor steps;    // [B, chunks, kStepWords] i32
  Tensor parts;    // plan_dictionary_parts(...)
};

}  // namespace hebb
