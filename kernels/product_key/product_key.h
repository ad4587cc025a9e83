#pragma once
#include "core/kernel.h"

namespace hebb {

// Product-key lookup with dot-product scores (docs/layers/pkm.md): N tokens, H heads, n sub-keys per codebook,
// k slots per head, D = half key size. slot = i n + j, i from codebook 0. Beside bf16 (q, values, r and their
// gradients) keys, sums, weights and gradients of parameters stay fp32.

/// slots, sums [N, H, k] (best first): the k best s[h,0,i] + s[h,1,j], s[h,c,i] = q[h,c] . keys[h,c,i].
/// q [N, H, 2, D], keys [H, 2, n, D]. Scores never leave the tile in which they are made.
/// Bound: compute, 4 N H n D FLOPs.
struct ProductKeyTopK {
  Tensor slots, sums, q, keys;
};
HEBB_KERNEL_WITH_SCRATCH(ProductKeyTopK)

/// sums [N, H, k] of given slots (forced decisions).
struct ProductKeyScore {
  Tensor sums, slots, q, keys;
};
HEBB_KERNEL(ProductKeyScore)

/// weights = softmax of sums over the last dimension, in place allowed; rows of `size` entries.
struct SoftmaxRows {
  Tensor weights, sums;
  int64_t size;
};
HEBB_KERNEL(SoftmaxRows)

/// r [N, dv] = sum over all entries e of a token of weights[e] values[slots[e]].
/// slots, weights [N, E]; values [slots, dv]. Bound: memory, E slots a token.
struct SlotRead {
  Tensor r, slots, weights, values;
};
HEBB_KERNEL(SlotRead)

/// d_weights [N, E] = <values[slot], d_r> (overwritten); d_values[slot] += weights d_r, in token order.
struct SlotReadBackward {
  Tensor d_weights, d_values;  // d_values may be undefined
  Tensor d_r, slots, weights, values;
};
HEBB_KERNEL(SlotReadBackward)

/// From d_weights [N, H, k] through each head's softmax to the scores, then d_q (overwritten or added
/// to) and d_keys += ..., in token order.
struct ProductKeyBackward {
  Tensor d_q, d_keys;  // d_q, d_keys may be undefined
  Tensor d_weights, weights, slots, q, keys;
  bool accumulate;  // d_q
};
HEBB_KERNEL_WITH_SCRATCH(ProductKeyBackward)

}  // namespace hebb
