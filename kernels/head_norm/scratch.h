#pragma once
#include "kernels/head_norm/head_norm.h"

namespace hebb {

/// Tokens of one partial sum. Both devices divide the tokens alike, whatever the number of threads.
constexpr int64_t kGatedNormBlock = 64;

inline int64_t gated_norm_blocks(int64_t tokens) { return (tokens + kGatedNormBlock - 1) / kGatedNormBlock; }

/// Sums over tokens in two stages, blocks of tokens first.
struct GatedNormBackwardScratch {
  Tensor partial;  // [blocks, elements of weight]; undefined without a weight
};

}  // namespace hebb
