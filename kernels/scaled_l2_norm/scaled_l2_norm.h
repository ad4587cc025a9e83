#pragma once
#include "core/kernel.h"

namespace hebb {

/// y = scale[h] x / sqrt(sum x^2 + 1e-6) over the last dimension. x, y [N, H, D]; scale [H].
/// Bound: memory, 2 passes. Source: docs/layers/attention.md, Forward.
struct ScaledL2NormForward {
  Tensor y, x, scale;
};
HEBB_KERNEL(ScaledL2NormForward)

/// d_x (overwritten, or added to where `accumulate`; may be undefined) and d_scale [H] += ... (may be
/// undefined) from d_y.
/// Bound: memory, 3 passes.
struct ScaledL2NormBackward {
  Tensor d_x, d_scale;
  Tensor d_y, x, scale;
  bool accumulate;
};
HEBB_KERNEL_WITH_SCRATCH(ScaledL2NormBackward)

}  // namespace hebb
