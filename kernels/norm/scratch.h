#pragma once
#include "kernels/norm/norm.h"

namespace hebb {

/// The weight gradients are sums over rows in two stages, blocks of rows first. Both devices divide the rows alike.
struct NormBackwardScratch {
  Tensor partial;  // [blocks, 2, d]: of d_weight, then of d_bias

  int64_t blocks() const { return partial.size(0); }
};

}  // namespace hebb
