#pragma once
#include "core/kernel.h"
#include "kernels/gated_delta/chunk_grid.h"

namespace hebb {

/// How q A^(-1) is computed (docs/layers/mesanet.md, Solve).
struct MesanetRule {
  bool exact = false;  // Cholesky instead of conjugate gradients
  int64_t steps = 30;  // of conjugate gradients
  double epsilon = 0;  // relative damping of their denominators
  double lambda_min = 0.25;
};

// The mesa recurrence per head: g = logsigmoid(a), beta = sigmoid(b), lambda = lambda_min + softplus(lambda_raw),
//   R = e^g R + beta kᵀk;  S = e^g S + beta kᵀv;  x = q (R + diag(lambda))^(-1) by the rule;  o = x S,
// R = S = 0 before a document's first token. q, k, x [B, T, H, dk]; v, o [B, T, H, dv]; a, b [B, T, H];
// lambda_raw [H, dk]; doc_start [B, T] i32. keys [B, H, dk, dk] (R) and values [B, H, dk, dv] (S): in, for
// rows that continue; out, after the last token; undefined: nothing is carried. A GPU takes fp32.

/// Token by token; for few tokens. FLOPs a token and head: 3 dk (dk + dv) + 2 dk dv + steps (2 dk^2 + 12 dk).
/// Bound: caches, R read once a step.
struct MesanetSteps {
  Tensor o, keys, values;
  Tensor q, k, v, a, b, lambda_raw, doc_start;
  MesanetRule rule;
};
HEBB_KERNEL_WITH_SCRATCH(MesanetSteps)

/// Chunk by chunk (docs/layers/mesanet.md, Chunk form): all tokens of a chunk are solved together. x, residual [B, T,
/// H] = |q - x A| / |q| (0 where q = 0): undefined, not wanted. FLOPs of a chunk of C tokens and head: C (2 dk (dk +
/// dv) + 2 dk dv + 2 C (dk + dv)) and, a step, C (2 dk^2 + 4 C dk + 12 dk), of which triangles save up to a half;
/// bound: multiply-adds. Steps end early where every system of the chunk is frozen.
struct MesanetForward {
  Tensor o, x, residual, keys, values;
  Tensor q, k, v, a, b, lambda_raw, doc_start;
  ChunkGrid grid;
  MesanetRule rule;
};
HEBB_KERNEL_WITH_SCRATCH(MesanetForward)

/// Gradients from d_o, by a second solve for each token (docs/layers/mesanet.md, Gradients and Chunk form); nothing is
/// carried into or out of the rows. d_q, d_k, d_v are overwritten, d_a and d_b too or added to by their flag,
/// d_lambda_raw +=. A first scan recomputes R and S at chunk starts. FLOPs: the forward pass's steps again, and about
/// C (10 dk (dk + dv) + 6 C (dk + dv)) a chunk of C and head.
struct MesanetBackward {
  Tensor d_q, d_k, d_v, d_a, d_b, d_lambda_raw;
  Tensor d_o, x, q, k, v, a, b, lambda_raw, doc_start;
  ChunkGrid grid;
  MesanetRule rule;
  bool accumulate_a, accumulate_b;
};
HEBB_KERNEL_WITH_SCRATCH(MesanetBackward)

}  // namespace hebb
