#pragma once
#include "core/tape.h"

namespace hebb {

/// (x - mean) / (std + 1e-6) per row of x [N, size], std with divisor size - 1 (spec 40, section 3).
Var z_score(Tape& tape, Var x);

/// sigmoid(mean over the columns of x [N, width]) -> [N] (spec 40, section 3).
Var mean_gate(Tape& tape, Var x);

/// g a + (1 - g) b; a, b [N, size], g [N] (spec 40, section 3).
Var gate_mix(Tape& tape, Var g, Var a, Var b);

}  // namespace hebb
