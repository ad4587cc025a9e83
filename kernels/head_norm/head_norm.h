#pragma once
#include "core/kernel.h"

namespace hebb {

/// n = x s with s = (sum over the head x^2 + 1e-6)^(-1/2), per head of head_dim channels (docs/model.md, Norms).
/// n, x [N, heads * head_dim] (may be the same memory); scale [N, heads] receives s. Bound: memory, 2 passes.
struct L2NormForward {
  Tensor n, scale, x;
  int64_t head_dim;
};
HEBB_KERNEL(L2NormForward)

/// d_x = s (d_n - n (n . d_n)), overwritten (d_x may be d_n) or, with `accumulate`, added to.
/// Bound: memory, 3 passes.
struct L2NormBackward {
  Tensor d_x, d_n, n, scale;
  int64_t head_dim;
  bool accumulate;
};
HEBB_KERNEL(L2NormBackward)

enum class HeadGate { none, silu, sigmoid };

/// y = rms(o; weight) * gate(z) per head of head_dim channels: rms(o) = o (mean o^2 + eps)^(-1/2) weight,
/// without weight o itself; gate elementwise. gate_first: y = rms(o * gate(z); weight). y, o, z [N, heads * head_dim]
/// (z undefined: no gate); weight [head_dim], shared by the heads, or [heads * head_dim]. o and d_o may be fp32 where
/// y, z and their gradients are bf16. Bound: memory, 3 passes.
struct GatedNormForward {
  Tensor y, o, z, weight;
  int64_t head_dim;
  double eps;
  HeadGate gate;
  bool gate_first = false;
};
HEBB_KERNEL(GatedNormForward)

/// d_o and d_z from d_y, overwritten or added to by their flag (undefined: not wanted); d_weight +=.
/// The root mean square is computed again. Bound: memory, 5 passes.
struct GatedNormBackward {
  Tensor d_o, d_z, d_weight;
  Tensor d_y, o, z, weight;
  int64_t head_dim;
  double eps;
  HeadGate gate;
  bool accumulate_o, accumulate_z;
  bool gate_first = false;
};
HEBB_KERNEL_WITH_SCRATCH(GatedNormBackward)

}  // namespace hebb
