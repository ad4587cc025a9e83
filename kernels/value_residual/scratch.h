#pragma once
#include "kernels/common/token_blocks.h"
#include "kernels/value_residual/value_residual.h"

namespace hebb {

using ValueResidualBlocks = TokenBlocks<64>;

struct ValueResidualBackwardScratch {
  Tensor partial;  // [blocks, C]; undefined where gated
};

}  // namespace hebb
