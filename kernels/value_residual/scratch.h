#pragma once
#include "kernels/value_residual/value_residual.h"

namespace hebb {

/// Tokens of one partial sum. Both devices divide the tokens alike, whatever the number of threads.
constexpr int64_t kValueResidualBlock = 64;

inline int64_t value_residual_blocks(int64_t tokens) {
  return (tokens + kValueResidualBlock - 1) / kValueResidualBlock;
}

/// Sums over tokens in two stages, blocks of tokens first.
struct ValueResidualBackwardScratch {
  Tensor partial;  // [blocks, C]; undefined where gated
};

}  // namespace hebb
