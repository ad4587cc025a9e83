#pragma once
#include "core/tape.h"

namespace hebb {

/// scale[h] x / sqrt(sum x^2 + 1e-6) per head: x [N, heads D] or any view of it, scale [heads] or no
/// Var for 1. Source: spec 00, section 3; spec 10, section 3.
Var l2_norm(Tape& tape, Var x, int64_t heads, int64_t head_dim, Var scale = {});

}  // namespace hebb
