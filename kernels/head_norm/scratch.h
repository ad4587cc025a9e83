#pragma once
#include "kernels/common/token_blocks.h"
#include "kernels/head_norm/head_norm.h"

namespace hebb {

using GatedNormBlocks = TokenBlocks<64>;

struct GatedNormBackwardScratch {
  Tensor partial;  // [blocks, elements of weight]; undefined without a weight
};

}  // namespace hebb
