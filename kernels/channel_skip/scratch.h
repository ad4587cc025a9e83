#pragma once
#include "kernels/channel_skip/channel_skip.h"
#include "kernels/common/token_blocks.h"

namespace hebb {

using ChannelSkipBlocks = TokenBlocks<64>;

struct ChannelSkipBackwardScratch {
  Tensor partial;  // [blocks, C]; undefined where d_scale is not wanted
};

}  // namespace hebb
