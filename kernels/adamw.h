#pragma once
#include "core/stream.h"

namespace hebb {

/// partial [ceil(N / kSumSquaresBlock)] f64 = sums of squares of fixed blocks of x [N]. Bound: memory.
struct SumSquares {
  Tensor partial, x;
};
constexpr int64_t kSumSquaresBlock = 65536;
HEBB_KERNEL(SumSquares)

/// One AdamW step of one tensor (spec 83, section 3): g = clip * grad;
/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p (1 - lr wd) - lr (m / c1) / (sqrt(v / c2) + eps)
/// with c1 = 1 - b1^t and c2 = 1 - b2^t computed in double. p, m, v, grad of one dtype (f32 or f64).
/// copy: p rounded to bf16, or undefined; CUDA only.
/// Bound: memory, 28 bytes an element in f32, 2 more with a copy.
struct AdamW {
  Tensor p, m, v, grad;
  double lr, beta1, beta2, eps, weight_decay, clip, c1, c2;
  Tensor copy{};
};
HEBB_KERNEL(AdamW)

}  // namespace hebb
