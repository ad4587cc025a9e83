#pragma once
#include "kernels/lact/heads.h"

namespace hebb {

/// Tokens of one partial sum, whatever the number of threads.
constexpr int64_t kLactKeysBlock = 32;
constexpr int64_t lact_keys_blocks(int64_t tokens) { return (tokens + kLactKeysBlock - 1) / kLactKeysBlock; }

struct LactKeysBackwardScratch {
  Tensor partial;  // [lact_keys_blocks(N), 2, F D]: sums of d_scale and of d_offset
};

}  // namespace hebb
