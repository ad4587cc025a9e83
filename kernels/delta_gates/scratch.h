#pragma once
#include "kernels/delta_gates/delta_gates.h"

namespace hebb {

/// Tokens of one partial sum. Both devices divide the tokens alike, whatever the number of threads.
constexpr int64_t kDeltaGatesBlock = 64;

inline int64_t delta_gates_blocks(int64_t tokens) { return (tokens + kDeltaGatesBlock - 1) / kDeltaGatesBlock; }

/// Sums over tokens in two stages, blocks of tokens first.
struct DeltaGatesBackwardScratch {
  Tensor partial;  // [blocks, 2, heads]: of d_a_log, then of d_dt_bias
};

}  // namespace hebb
