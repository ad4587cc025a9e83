#pragma once
#include "kernels/common/token_blocks.h"
#include "kernels/token_shift/token_shift.h"

namespace hebb {

using TokenShiftBlocks = TokenBlocks<256>;

struct TokenShiftBackwardScratch {
  Tensor partial;  // [blocks, C]
};

}  // namespace hebb
