#pragma once
#include "kernels/token_shift/token_shift.h"

namespace hebb {

/// Tokens of one partial sum. Both devices divide the tokens alike, whatever the number of threads.
constexpr int64_t kTokenShiftBlock = 256;

inline int64_t token_shift_blocks(int64_t tokens) { return (tokens + kTokenShiftBlock - 1) / kTokenShiftBlock; }

/// Sums over tokens in two stages, blocks of tokens first.
struct TokenShiftBackwardScratch {
  Tensor partial;  // [blocks, C]
};

}  // namespace hebb
