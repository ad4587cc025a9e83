#pragma once
#include "kernels/common/token_blocks.h"
#include "kernels/delta_gates/delta_gates.h"

namespace hebb {

using DeltaGatesBlocks = TokenBlocks<64>;

struct DeltaGatesBackwardScratch {
  Tensor partial;  // [blocks, 2, heads]: of d_a_log, then of d_dt_bias
};

}  // namespace hebb
