#pragma once
#include "core/kernel.h"

namespace hebb {

/// Pairs the key before with a mix of two values: k_out_t = k_{t-1}, v_out_t = s v_{t-1} + (1 - s) v_t with
/// s = sigmoid(shift), zeros before a document (docs/layers/ovq.md, Forward). k [B, T, C], v [B, T, Cv], shift [1],
/// doc_start [B, T] i32; previous_k [B, C], previous_v [B, Cv]: of the token before the rows, for rows that continue
/// (may be undefined). Bound by memory.
struct PairShiftForward {
  Tensor k_out, v_out;
  Tensor k, v, shift, previous_k, previous_v, doc_start;
};
HEBB_KERNEL(PairShiftForward)

/// d_k and d_v (overwritten or added to; undefined: not wanted) and d_shift [1] += ... from d_k_out and d_v_out, for
/// rows that continue nothing.
struct PairShiftBackward {
  Tensor d_k, d_v, d_shift;
  Tensor d_k_out, d_v_out, v, shift, doc_start;
  bool accumulate_k, accumulate_v;
};
HEBB_KERNEL_WITH_SCRATCH(PairShiftBackward)

}  // namespace hebb
