#pragma once
#include "kernels/common/token_blocks.h"
#include "kernels/short_conv/short_conv.h"

namespace hebb {

using ShortConvBlocks = TokenBlocks<64>;

struct ShortConvBackwardScratch {
  Tensor partial;  // [blocks, K + 1, C]; undefined where neither d_weight nor d_bias is wanted
};

}  // namespace hebb
