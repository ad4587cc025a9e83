#pragma once
#include "core/tape.h"

namespace hebb {

/// scale[h] x / sqrt(sum x^2 + 1e-6) per head of head_dim channels; x [N, heads * head_dim], scale
/// [heads]. Source: docs/layers/attention.md, Forward. Without scale: l2_norm of head_norm.h.
Var scaled_l2_norm(Tape& tape, Var x, int64_t head_dim, Var scale);

}  // namespace hebb
