#pragma once
#include "core/kernel.h"

namespace hebb {

/// y = silu(gate) * up, elementwise. Bound: memory, 3 passes.
struct SwigluForward {
  Tensor y, gate, up;
};
HEBB_KERNEL(SwigluForward)

/// d_gate and d_up, overwritten, from d_y. Bound: memory, 5 passes.
struct SwigluBackward {
  Tensor d_gate, d_up, d_y, gate, up;
};
HEBB_KERNEL(SwigluBackward)

/// y = max(x, 0)^2, elementwise.
struct Relu2Forward {
  Tensor y, x;
};
HEBB_KERNEL(Relu2Forward)

/// d_x = 2 max(x, 0) d_y, overwritten.
struct Relu2Backward {
  Tensor d_x, d_y, x;
};
HEBB_KERNEL(Relu2Backward)

}  // namespace hebb
