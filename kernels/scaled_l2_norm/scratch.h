#pragma once
#include "kernels/scaled_l2_norm/scaled_l2_norm.h"

namespace hebb {

/// Tokens of one partial sum. Both devices divide the tokens alike, whatever the number of threads.
constexpr int64_t kScaledL2NormBlock = 32;

inline int64_t scaled_l2_norm_blocks(int64_t tokens) { return (tokens + kScaledL2NormBlock - 1) / kScaledL2NormBlock; }

/// Sums over tokens in two stages, blocks of tokens first.
struct ScaledL2NormBackwardScratch {
  Tensor partial;  // [blocks, H]
};

}  // namespace hebb
