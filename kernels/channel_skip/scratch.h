#pragma once
#include "kernels/channel_skip/channel_skip.h"

namespace hebb {

/// Tokens of one partial sum. Both devices divide the tokens alike, whatever the number of threads.
constexpr int64_t kChannelSkipBlock = 64;

inline int64_t channel_skip_blocks(int64_t tokens) { return (tokens + kChannelSkipBlock - 1) / kChannelSkipBlock; }

/// Sums over tokens in two stages, blocks of tokens first.
struct ChannelSkipBackwardScratch {
  Tensor partial;  // [blocks, C]; undefined where d_scale is not wanted
};

}  // namespace hebb
