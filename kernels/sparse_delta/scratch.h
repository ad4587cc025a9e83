#pragma once
#include "kernels/sparse_delta/sparse_delta.h"

namespace hebb {

/// Channels of a slice on a GPU.
constexpr int64_t kSparseDeltaSlice = 64;

struct SparseDeltaIndexScratch {
  Tensor map;  // [workers, slots] i32: codes of slots; on a GPU [1, n] i32: keys, and what sorting them takes
};

struct SparseDeltaForwardScratch {
  Tensor table;  // private places: [workers, places, channels of a slice]; on a GPU [B, H, slices, slots, 64]
};

struct SparseDeltaBackwardScratch {
  Tensor d_u;    // [N, H, D]: gradients of u = beta e
  Tensor sums;   // [B, H, slots, D]: of d_memory by row of the batch, on a GPU
  Tensor table;  // as in SparseDeltaForwardScratch: of G, then of M
};

struct SparseDeltaScanScratch {
  Tensor carry;  // f64: [workers, places], on a GPU [N, H, W]
};

}  // namespace hebb
