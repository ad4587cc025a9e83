#pragma once
#include "core/kernel.h"

namespace hebb {

/// partial [ceil(N / kSumSquaresBlock)] f64 = sums of squares of fixed blocks of x [N]. Bound: memory.
struct SumSquares {
  Tensor partial, x;
};
constexpr int64_t kSumSquaresBlock = 65536;
HEBB_KERNEL(SumSquares)

/// Room for clip sets in a step's outcome: loss, 1 if the step applies or else 0, then norm and clip factor of each
/// set.
constexpr int64_t step_outcome_size(int64_t sets) { return 2 + 2 * sets; }

/// What the gradients of a clip set are multiplied by: above `limit` their norm becomes the limit. limit 0: off.
constexpr double clip_factor(double norm, double limit) {
  const double factor = limit / (norm + 1e-6);
  return limit > 0 && factor < 1 ? factor : 1;
}

/// What a step does (docs/training.md, A step), in doubles: outcome [step_outcome_size(S)] from partial (SumSquares of
/// the S clip sets, set s at elements ends[s - 1] to ends[s]; ends [S] i64), limits [S] f64 (clip_norm; 0: off), and
/// the losses: scale [1] f64 times the sum of row_loss [N] f64, or 0 where they are undefined. A step applies if its
/// loss and all norms are finite. One order of summation on each device, whatever it is. Bound: latency.
struct DecideStep {
  Tensor outcome;
  Tensor partial, ends, limits, row_loss, scale;
};
HEBB_KERNEL(DecideStep)

/// What changes from step to step of a tensor's AdamW, in doubles: 1 - lr wd, lr / (1 - b1^t), 1 / (1 - b2^t).
constexpr int64_t kAdamWRates = 3;

/// One AdamW step of one tensor (docs/training.md, AdamW): g = clip * grad;
/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p (1 - lr wd) - lr (m / c1) / (sqrt(v / c2) + eps)
/// with c1 = 1 - b1^t and c2 = 1 - b2^t, by rates [kAdamWRates] f64. p, m, v, grad of one dtype (f32 or f64).
/// clip [1] f64, undefined: 1. applies [1] f64: where it is 0 nothing is written; undefined: 1.
/// copy: p rounded to bf16, or undefined.
/// Bound: memory, 28 bytes an element in f32, 2 more with a copy.
struct AdamW {
  Tensor p, m, v, grad;
  double beta1, beta2, eps;
  Tensor rates, clip{}, applies{}, copy{};
};
HEBB_KERNEL(AdamW)

}  // namespace hebb
