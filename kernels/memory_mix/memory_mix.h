#pragma once
#include "core/kernel.h"

namespace hebb {

// The slow parts around a fast-weight memory (docs/layers/fwpkm.md, Retrieval). Bound: memory.

/// y = (x - mean) / (std + 1e-6), std with divisor size - 1, per row of x [N, size]; rstd [N] = 1 / (std + 1e-6).
struct ZScore {
  Tensor y, rstd, x;
};
HEBB_KERNEL(ZScore)

/// d_x [N, size] (overwritten or added to) from d_y [N, size], y and rstd of ZScore.
struct ZScoreBackward {
  Tensor d_x, d_y, y, rstd;
  bool accumulate;
};
HEBB_KERNEL(ZScoreBackward)

/// g [N] = sigmoid(mean of x [N, width]).
struct MeanGate {
  Tensor g, x;
};
HEBB_KERNEL(MeanGate)

/// d_x [N, width] (overwritten or added to) from d_g [N] and g [N].
struct MeanGateBackward {
  Tensor d_x, d_g, g;
  bool accumulate;
};
HEBB_KERNEL(MeanGateBackward)

/// o = g a + (1 - g) b; a, b [N, size], g [N].
struct GateMix {
  Tensor o, g, a, b;
};
HEBB_KERNEL(GateMix)

/// d_g [N], d_a and d_b [N, size] (overwritten or added to by their flag; each may be undefined) from d_o [N, size].
struct GateMixBackward {
  Tensor d_g, d_a, d_b, d_o, g, a, b;
  bool accumulate_g, accumulate_a, accumulate_b;
};
HEBB_KERNEL(GateMixBackward)

}  // namespace hebb
