#pragma once
#include "kernels/short_conv/short_conv.h"

namespace hebb {

/// Tokens of one partial sum of a row. Both devices divide the tokens alike, whatever the number of threads.
constexpr int64_t kShortConvBlock = 64;

inline int64_t short_conv_blocks(int64_t rows, int64_t length) {
  return rows * ((length + kShortConvBlock - 1) / kShortConvBlock);
}

/// Sums over tokens in two stages, blocks of tokens first.
struct ShortConvBackwardScratch {
  Tensor partial;  // [blocks, K + 1, C]; undefined where neither d_weight nor d_bias is wanted
};

}  // namespace hebb
