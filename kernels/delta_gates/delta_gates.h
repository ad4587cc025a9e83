#pragma once
#include <limits>

#include "core/kernel.h"

namespace hebb {

/// Log-decay and write strength of the delta rule (docs/layers/gdn.md, Recurrence):
/// g = -exp(A_log) softplus(a + dt_bias), beta = beta_scale sigmoid(b); softplus(z) = z above 20.
/// g, beta, a, b [N, heads]; A_log, dt_bias [heads]. beta_scale 2 allows negative eigenvalues.
/// b undefined (docs/layers/mamba2.md, Recurrence): g = -exp(A_log) dt and beta = dt with dt = softplus(a + dt_bias)
/// clamped to [dt_low, dt_high]; otherwise the limits do not act.
struct DeltaGatesForward {
  Tensor g, beta, a, b, a_log, dt_bias;
  double beta_scale;
  double dt_low = 0, dt_high = std::numeric_limits<double>::infinity();
};
HEBB_KERNEL(DeltaGatesForward)

/// d_a, d_b (overwritten, or added to by their flag; undefined: not wanted), d_a_log +=, d_dt_bias +=,
/// from d_g and d_beta and the forward pass's g and beta. b_is_step: beta was dt, whose gradient is 0 where it was
/// clamped.
struct DeltaGatesBackward {
  Tensor d_a, d_b, d_a_log, d_dt_bias;
  Tensor d_g, d_beta, g, beta, a, a_log, dt_bias;
  double beta_scale;
  bool accumulate_a, accumulate_b;
  bool b_is_step = false;
  double dt_low = 0, dt_high = std::numeric_limits<double>::infinity();
};
HEBB_KERNEL_WITH_SCRATCH(DeltaGatesBackward)

}  // namespace hebb
