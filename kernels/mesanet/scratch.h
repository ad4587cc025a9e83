#pragma once
#include <algorithm>

#include "kernels/mesanet/mesanet.h"

namespace hebb {

// `work` holds one slot for each task that runs at a time: a row and head, or on a GPU a chunk and head.

struct MesanetStepsScratch {
  Tensor work;  // [slots, elements]
};

struct MesanetForwardScratch {
  Tensor key_starts, value_starts;  // as in MesanetBackwardScratch, on a GPU
  Tensor work;                      // [slots, elements]; on a GPU at least B H slots
};

struct MesanetBackwardScratch {
  Tensor key_starts, value_starts;  // [grid.states, H, dk, dk] and [grid.states, H, dk, dv]: R and S at chunk starts
  Tensor lambda_sums;               // [B, H, dk]: gradients of lambda, by row of the batch
  Tensor solutions;                 // [B, T, H, dk]: of the second solves, on a GPU
  Tensor d_key_starts, d_value_starts;  // as key_starts, value_starts, on a GPU
  Tensor work;                          // as in MesanetForwardScratch
};

/// R and S at chunk starts.
inline Tensor mesanet_starts(Workspace& workspace, const ChunkGrid& grid, const Tensor& k, int64_t columns,
                             DType dtype) {
  return workspace.tensor({grid.states, k.size(2), k.size(3), columns}, dtype, "mesa states");
}

/// `chunks`: chunks of all heads, of which a GPU takes a few on each multiprocessor at a time; 0 where tokens follow
/// each other.
inline Tensor mesanet_work(Workspace& workspace, int64_t pairs, int64_t chunks, int64_t elements, DType dtype) {
  constexpr int64_t kChunks = 512;
  const int64_t tasks = workspace.on_gpu() ? std::max(pairs, std::min(kChunks, chunks)) : pairs;
  return workspace.tensor({scratch_slots(workspace.stream(), tasks), elements}, dtype, "mesa scratch");
}

}  // namespace hebb
