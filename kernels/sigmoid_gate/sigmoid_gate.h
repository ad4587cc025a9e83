#pragma once
#include "core/kernel.h"

namespace hebb {

/// y = x * sigmoid(gate). x, y [N, H, C]; gate [N, H] (one number a head) or [N, H, C].
/// Bound: memory, 3 passes.
struct SigmoidGateForward {
  Tensor y, x, gate;
};
HEBB_KERNEL(SigmoidGateForward)

/// d_x = d_y sigmoid(gate) and d_gate = sum d_y x s (1 - s), overwritten or added to where told so; each
/// may be undefined. Bound: memory, 5 passes.
struct SigmoidGateBackward {
  Tensor d_x, d_gate;
  Tensor d_y, x, gate;
  bool accumulate_x, accumulate_gate;
};
HEBB_KERNEL(SigmoidGateBackward)

}  // namespace hebb
