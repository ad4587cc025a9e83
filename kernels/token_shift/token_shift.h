#pragma once
#include "core/kernel.h"

namespace hebb {

/// y_t = x_t + mu * (x_{t-1} - x_t) per channel (docs/layers/attention.md, Token shift). At a document's first token
/// x_{t-1} is 0 (zero_start) or x_t itself. x, y [B, T, C]; mu [C]; doc_start [B, T] i32.
/// previous [B, C]: x of the token before the rows, for rows that continue (may be undefined).
struct TokenShiftForward {
  Tensor y, x, mu, previous, doc_start;
  bool zero_start;
};
HEBB_KERNEL(TokenShiftForward)

/// d_x (overwritten or, with `accumulate`, added to) and d_mu [C] += ..., from d_y.
struct TokenShiftBackward {
  Tensor d_x, d_mu;
  Tensor d_y, x, mu, doc_start;
  bool zero_start, accumulate;
};
HEBB_KERNEL_WITH_SCRATCH(TokenShiftBackward)

}  // namespace hebb
