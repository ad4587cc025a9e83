#pragma once
#include "core/kernel.h"

namespace hebb {

// What lies between projections and fast weights of `lact`, elementwise or per fast head (docs/layers/lact.md,
// Forward).

/// y = u / (|u| + 1e-5) per fast head, u = silu(x scale[:, column] + offset[:, column]). y, x [N, F, D]; scale,
/// offset [F D, 2]. Bound: memory, 2 passes.
struct LactKeysForward {
  Tensor y, x, scale, offset;
  int64_t column;
};
HEBB_KERNEL(LactKeysForward)

/// d_x (overwritten or added to), and the columns of d_scale and d_offset (+=), each may be undefined; u is computed
/// again. Bound: memory, 3 passes.
struct LactKeysBackward {
  Tensor d_x, d_scale, d_offset;
  Tensor d_y, x, scale, offset;
  int64_t column;
  bool accumulate;
};
HEBB_KERNEL_WITH_SCRATCH(LactKeysBackward)

/// y = base + silu(gate) x, one gate a head. y, base, x [N, F, D]; gate [N, F]. Bound: memory, 3 passes.
struct LactMixForward {
  Tensor y, base, x, gate;
};
HEBB_KERNEL(LactMixForward)

/// d_x and d_gate from d_y, overwritten or added to; each may be undefined. Bound: memory, 4 passes.
struct LactMixBackward {
  Tensor d_x, d_gate;
  Tensor d_y, x, gate;
  bool accumulate_x, accumulate_gate;
};
HEBB_KERNEL(LactMixBackward)

/// y [F, rows, columns] = half the (rectangular) identity for every head.
struct HalfIdentity {
  Tensor y;
};
HEBB_KERNEL(HalfIdentity)

}  // namespace hebb
