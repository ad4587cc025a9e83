#pragma once
#include "core/kernel.h"
#include "kernels/gated_delta/chunk_grid.h"

namespace hebb {

// Gated delta rule per value head (docs/layers/gdn.md, Recurrence): S = e^g S; delta = beta (v - k S); S += kᵀ delta;
// o = scale q S, S = initial_state (or 0) before a document's first token.
// q, k [B, T, H, dk]; v, o [B, T, HV, dv]; g <= 0, beta [B, T, HV]; initial_state [HV, dk, dv] or
// undefined; doc_start [B, T] i32. Value head j uses key head j / (HV / H). The sizes are those of the
// tensors' shapes. prediction [B, T, HV, dv] (undefined: not wanted) = k S before the token's decay and write.
// state [B, HV, dk, dv]: in, for rows that continue; out, after the last token; undefined: nothing is carried.
// Rows that continue need it. additive: delta = beta v, plain gated linear attention (docs/layers/mamba2.md,
// Recurrence), without products of keys with keys or with the state, and without prediction. Then o and d_o are fp32
// where q, k and v are bf16: a norm behind o makes d_o orthogonal to o, and rounding either would undo that.

/// Token by token; for few tokens. FLOPs: 7 dk dv a token and value head.
/// Bound: caches, state read twice and written once a token.
struct GatedDeltaSteps {
  Tensor o, prediction, state;
  Tensor q, k, v, g, beta, initial_state, doc_start;
  double scale;
  bool additive = false;
};
HEBB_KERNEL(GatedDeltaSteps)

/// Chunk by chunk (docs/layers/gdn.md, Chunk form), by forward substitution instead of an explicit inverse.
/// FLOPs of a chunk of C: about 2 C (1.5 C dk + 3 dk dv + 1.25 C dv) a value head, additive 2 C (0.75 C dk + 2 dk dv +
/// 0.75 C dv); bound: multiply-adds.
struct GatedDeltaForward {
  Tensor o, prediction, state;
  Tensor q, k, v, g, beta, initial_state, doc_start;
  ChunkGrid grid;
  double scale;
  bool additive = false;
};
HEBB_KERNEL_WITH_SCRATCH(GatedDeltaForward)

/// Gradients from d_o; nothing is carried into or out of the rows. All but d_initial_state (+=, may be
/// undefined) are overwritten. q, k, v, g, beta as in the forward pass.
/// A first scan recomputes the states at chunk starts and the prediction errors E (delta = beta E; additive: E = v).
/// FLOPs of a chunk: about 2 C (5 C dk + 3.25 C dv + 8 dk dv) a value head; bound: multiply-adds. With d_o in fp32 and
/// the rest in bf16, tensor cores take d_o in two parts, one after the other: all but the first scan runs twice.
struct GatedDeltaBackward {
  Tensor d_q, d_k, d_v, d_g, d_beta, d_initial_state;
  Tensor d_o, q, k, v, g, beta, initial_state, doc_start;
  ChunkGrid grid;
  double scale;
  bool additive = false;
};
HEBB_KERNEL_WITH_SCRATCH(GatedDeltaBackward)

}  // namespace hebb
