#pragma once
#include "core/stream.h"

namespace hebb {

/// y = scale[h] x / sqrt(sum x^2 + 1e-6) over the last dimension. x, y [N, H, D]; scale [H], or
/// undefined for 1. Bound: memory, 2 passes. Source: spec 00, section 3; spec 10, section 3.
struct L2NormForward {
  Tensor y, x, scale;
};
HEBB_KERNEL_CPU(L2NormForward)

/// d_x (overwritten, or added to where `accumulate`; may be undefined) and d_scale [H] += ... (may be
/// undefined) from d_y. partial [l2_norm_blocks(N), H] is scratch of the two-stage sum over tokens.
/// Bound: memory, 3 passes.
struct L2NormBackward {
  Tensor d_x, d_scale, partial;
  Tensor d_y, x, scale;
  bool accumulate;
};
HEBB_KERNEL_CPU(L2NormBackward)

int64_t l2_norm_blocks(int64_t tokens);

}  // namespace hebb
