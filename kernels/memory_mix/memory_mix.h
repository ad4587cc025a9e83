#pragma once
#include "core/stream.h"

namespace hebb {

// The slow parts around a fast-weight memory (docs/layers/fwpkm.md, Retrieval). Bound: memory.

/// y = (x - mean) / (std + 1e-6), std with divisor size - 1, per row of x [N, size]; rstd [N] = 1 / (std + 1e-6).
struct ZScore {
  Tensor y, rstd, x;
};
HEBB_KERNEL(ZScore)

/// d_x (+)= of ZScore.
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

/// Any of d_g, d_a, d_b may be undefined.
struct GateMixBackward {
  Tensor d_g, d_a, d_b, d_o, g, a, b;
  bool accumulate_g, accumulate_a, accumulate_b;
};
HEBB_KERNEL(GateMixBackward)

}  // namespace hebb
