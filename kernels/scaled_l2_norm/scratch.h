#pragma once
#include "kernels/common/token_blocks.h"
#include "kernels/scaled_l2_norm/scaled_l2_norm.h"

namespace hebb {

using ScaledL2NormBlocks = TokenBlocks<32>;

struct ScaledL2NormBackwardScratch {
  Tensor partial;  // [blocks, H]
};

}  // namespace hebb
