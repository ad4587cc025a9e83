#pragma once
#include "core/stream.h"

namespace hebb {

/// Log-decay and write strength of the delta rule (spec 20, section 3):
/// g = -exp(A_log) softplus(a + dt_bias), beta = beta_scale sigmoid(b); softplus(z) = z above 20.
/// g, beta, a, b [N, heads]; A_log, dt_bias [heads]. beta_scale 2 allows negative eigenvalues.
struct DeltaGatesForward {
  Tensor g, beta, a, b, a_log, dt_bias;
  double beta_scale;
};
HEBB_KERNEL(DeltaGatesForward)

/// d_a, d_b (overwritten, or added to by their flag; undefined: not wanted), d_a_log +=, d_dt_bias +=,
/// from d_g and d_beta and the forward pass's g and beta.
/// partial [delta_gates_blocks(N), 2, heads] is scratch of the two-stage sums over tokens.
struct DeltaGatesBackward {
  Tensor d_a, d_b, d_a_log, d_dt_bias, partial;
  Tensor d_g, d_beta, g, beta, a, a_log, dt_bias;
  double beta_scale;
  bool accumulate_a, accumulate_b;
};
HEBB_KERNEL(DeltaGatesBackward)

/// Token blocks of the sums: a function of N only, never of threads.
int64_t delta_gates_blocks(int64_t tokens);

}  // namespace hebb
