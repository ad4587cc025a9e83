#pragma once
#include "core/kernel.h"

namespace hebb {

/// How the fast weights of `lact` move (docs/layers/lact.md, Update).
struct LactRule {
  int64_t chunk = 512;
  bool momentum = true, muon = false;
  double rate_shift = 0;  // inverse softplus of base_lr
  bool tf32 = false;      // a GPU may round the operands of matrix products to 10 bits of mantissa (runs in bf16)
};

// A fast SwiGLU per sequence and head, f(W, z) = W1 (silu(W0 z) * (W2 z)), read by the queries of a chunk and then
// moved by ascent on sum_t eta_t f(W, k_t) . v_t over its tokens, where a later chunk exists. Every document starts
// anew from w0, w2 [F, h, D], w1 [F, D, h]; its chunks are counted from its first token.
// q, k, v, y [B, T, F, D]; rates [B, T, F, 3]: eta = softplus(rates + rate_shift) of W0, W1, W2; mix [B, T, F]: a
// chunk's momentum is the mean of sigmoid(mix) (undefined without momentum); doc_start [B, T] i32.
// A head's matrices lie one after the other, W0, W1, W2: 3 h D numbers. All are fp32 or fp64.

/// weights, momentum, sums [B, F, 3 h D] and mix_sums [B, F]: W, M, what the chunk in progress has gathered of G and
/// of sigmoid(mix); in, for rows that continue; out, after the last token; undefined: nothing is carried.
/// FLOPs a token and head: 6 h D, and 12 h D where a chunk is gathered; with Muon about 30 h^2 D for each matrix and
/// update. Bound: multiply-adds.
struct LactForward {
  Tensor y, weights, momentum, sums, mix_sums;
  Tensor q, k, v, rates, mix, w0, w1, w2, doc_start;
  LactRule rule;
};
HEBB_KERNEL_WITH_SCRATCH(LactForward)

/// Gradients from d_y through reads, updates, momentum, Muon and row norms; nothing is carried into or out of the
/// rows. All but the d_w (+=) are overwritten or added to where told so. d_k, d_v and d_rates are undefined where
/// no document has a second chunk, d_mix too or without momentum; any may be.
/// A first scan keeps W and M after every update, 6 h D numbers each, for one row and head at a time.
/// FLOPs a token and head: about 18 h D for reads and 48 h D for what is gathered; 16 h D and 42 h D on a GPU.
struct LactBackward {
  Tensor d_q, d_k, d_v, d_rates, d_mix, d_w0, d_w1, d_w2;
  Tensor d_y, q, k, v, rates, mix, w0, w1, w2, doc_start;
  LactRule rule;
  bool accumulate_q, accumulate_k, accumulate_v, accumulate_rates, accumulate_mix;
};
HEBB_KERNEL_WITH_SCRATCH(LactBackward)

}  // namespace hebb
