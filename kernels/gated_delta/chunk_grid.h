#pragma once
#include "core/tensor.h"

namespace hebb {

/// Chunks of rows [B, T], laid out per document: none crosses a row's end or a document's first token.
struct ChunkGrid {
  Tensor chunks;        // [n, 3] i64, row by row: first token (b T + t), length, number of the state at its
                        // start among those that must be kept (-1: a document or a row begins here)
  Tensor rows;          // [B + 1] i64: first chunk of each row, then n
  int64_t states = 0;   // start states to keep: at most B T / chunk
  int64_t longest = 0;  // tokens of the longest chunk
};

}  // namespace hebb
