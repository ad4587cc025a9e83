#pragma once
#include <algorithm>

#include "kernels/common/cores.h"
#include "kernels/product_key/product_key.h"

namespace hebb {

struct ProductKeyTopKScratch {
  bool on_tensor_cores = false;
};

/// On tensor cores a block ranks all n sub-keys of a codebook for so many tokens. Beside a stage of keys and queries
/// their ranks lie in shared memory, a quarter of the banks apart.
constexpr int64_t kRankStageBytes = 92160, kRankedTokens = 64;
constexpr int64_t rank_stride(int64_t n, int64_t k) { return (std::max(n, 2 * k) + 23) / 32 * 32 + 8; }
constexpr int64_t ranked_tokens(int64_t n, int64_t k, int64_t shared_bytes) {
  return std::min((shared_bytes - kRankStageBytes) / (4 * rank_stride(n, k)) / 16 * 16, kRankedTokens);
}

/// The cores that rank sub-keys: q [., H, 2, D], keys [H, 2, n, D]. Tensor cores take bf16, k <= n, and a D that is a
/// multiple of 8.
Cores product_key_cores(const Tensor& q, const Tensor& keys, int64_t k);

struct ProductKeyBackwardScratch {
  Tensor d_sums;  // [N, H, k]: gradients of the scores of the chosen slots
};

}  // namespace hebb
