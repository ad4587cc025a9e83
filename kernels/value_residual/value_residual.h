#pragma once
#include "core/kernel.h"

namespace hebb {

/// y = v + lambda (first - v) per channel (docs/layers/attention.md, Value residual). v, first, y [N, C];
/// mix [N, C]: lambda = sigmoid(mix), or, not `gated`, mix [C]: lambda itself.
/// Bound: memory, 3 or 4 passes.
struct ValueResidualForward {
  Tensor y, v, first, mix;
  bool gated;
};
HEBB_KERNEL(ValueResidualForward)

/// d_v = (1 - lambda) d_y, d_first = lambda d_y, d_mix = d_y (first - v) and, gated, times
/// lambda (1 - lambda). Outputs are overwritten, or added to where told so (d_mix [C]: always added
/// to); each may be undefined.
struct ValueResidualBackward {
  Tensor d_v, d_first, d_mix;
  Tensor d_y, v, first, mix;
  bool gated, accumulate_v, accumulate_first, accumulate_mix;
};
HEBB_KERNEL_WITH_SCRATCH(ValueResidualBackward)

}  // namespace hebb
