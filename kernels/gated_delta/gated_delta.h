#pragma once
#include "core/stream.h"
#include "kernels/gated_delta/chunk_grid.h"

namespace hebb {

// Gated delta rule per value head (docs/layers/gdn.md, Recurrence): S = e^g S; delta = beta (v - k S); S += kᵀ delta;
// o = scale q S, S = initial_state (or 0) before a document's first token.
// q, k [B, T, H, dk]; v, o [B, T, HV, dv]; g <= 0, beta [B, T, HV]; initial_state [HV, dk, dv] or
// undefined; doc_start [B, T] i32. Value head j uses key head j / (HV / H). The sizes are those of the
// tensors' shapes. prediction [B, T, HV, dv] (undefined: not wanted) = k S before the token's decay and write.
// state [B, HV, dk, dv]: in, for rows that continue; out, after the last token; undefined: nothing is carried.
// Rows that continue need it. additive: delta = beta v, plain gated linear attention (docs/layers/mamba2.md,
// Recurrence), without products of keys with keys or with the state, and without prediction.

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
/// scratch [slots, gated_delta_forward_scratch]: one slot for each thread.
struct GatedDeltaForward {
  Tensor o, prediction, state, scratch;
  Tensor q, k, v, g, beta, initial_state, doc_start;
  ChunkGrid grid;
  double scale;
  bool additive = false;
};
HEBB_KERNEL(GatedDeltaForward)

/// Gradients from d_o; nothing is carried into or out of the rows. All but d_initial_state (+=, may be
/// undefined) are overwritten. q, k, v, g, beta as in the forward pass.
/// A first sweep recomputes the states at chunk starts and the prediction errors E (delta = beta E; additive: E = v).
/// FLOPs of a chunk: about 2 C (5 C dk + 3.25 C dv + 8 dk dv) a value head; bound: multiply-adds.
/// starts [grid.states, HV, dk, dv]; errors [B, T, HV, dv]; initial_sums [B, HV, dk, dv] (with
/// d_initial_state); scratch [slots, gated_delta_backward_scratch]. On a GPU whose tensor cores do it adjoints
/// [gated_delta_adjoints] instead of scratch; starts then holds states and their gradients in bf16, errors two bf16
/// each.
struct GatedDeltaBackward {
  Tensor d_q, d_k, d_v, d_g, d_beta, d_initial_state;
  Tensor starts, errors, initial_sums, scratch;
  Tensor d_o, q, k, v, g, beta, initial_state, doc_start;
  ChunkGrid grid;
  double scale;
  bool additive = false;
  Tensor adjoints = {};
};
HEBB_KERNEL(GatedDeltaBackward)

/// Shared memory [bytes] that a block on tensor cores takes at least.
constexpr int64_t gated_delta_shared_bytes(int64_t key_dim) { return (key_dim <= 64 ? 155 : 204) * 1024; }
/// Whether the tensor cores of a GPU do it: bf16, chunks of up to 64 tokens, keys of a multiple of 8 up to 128, values
/// of a multiple of 8, all at addresses that are multiples of 16, and room in shared memory.
bool gated_delta_on_tensor_cores(const GatedDeltaBackward& args);
/// Numbers of 4 bytes in its adjoints: [B, T, HV, dv], and initial_state in bf16.
int64_t gated_delta_adjoints(const GatedDeltaBackward& args);

/// Elements of one slot of scratch; chunk = grid.longest.
int64_t gated_delta_forward_scratch(int64_t chunk, int64_t key_dim, int64_t value_dim);
int64_t gated_delta_backward_scratch(int64_t chunk, int64_t key_dim, int64_t value_dim);

}  // namespace hebb
