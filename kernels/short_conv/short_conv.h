#pragma once
#include "core/kernel.h"

namespace hebb {

/// Causal depthwise convolution over time with an optional SiLU (docs/layers/gdn.md, Recurrence):
/// z_t[c] = bias[c] + sum_{l=0..K-1} weight[c, K-1-l] x_{t-l}[c], inputs before the document = 0; y = silu(z) or z.
/// y, x [B, T, C]; weight [C, K], or undefined: z = x; bias [C] or undefined; doc_start [B, T] i32.
/// previous [B, K-1, C]: the inputs before the rows, oldest first; undefined where no row continues.
/// With scale [B, T, heads] y is then l2-normed by heads of head_dim channels, as L2NormForward does; scale receives
/// the factors. Bound: memory, 2 passes; in f32 caches the exponential of the SiLU.
struct ShortConvForward {
  Tensor y, x, weight, bias, previous, doc_start;
  bool silu;
  Tensor scale = {};
  int64_t head_dim = 0;
};
HEBB_KERNEL(ShortConvForward)

/// From d_y: d_x (overwritten or, with `accumulate`, added to), d_weight += and d_bias +=; undefined
/// ones are not wanted. z is computed again. d_x may be d_y only where weight is undefined.
/// With scale, that of the forward pass, d_y is the gradient at the normed heads n, the forward pass's y, and may be
/// overwritten. Bound: memory, 3 passes.
struct ShortConvBackward {
  Tensor d_x, d_weight, d_bias;
  Tensor d_y, x, weight, bias, doc_start;
  bool silu, accumulate;
  Tensor n = {}, scale = {};
  int64_t head_dim = 0;
};
HEBB_KERNEL_WITH_SCRATCH(ShortConvBackward)

/// previous [B, K-1, C] = the last K-1 inputs after x [B, T, C] was appended to it.
struct ShortConvShift {
  Tensor previous, x;
};
HEBB_KERNEL(ShortConvShift)

}  // namespace hebb
