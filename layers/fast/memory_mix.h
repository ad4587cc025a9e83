#pragma once
#include "core/tape.h"

namespace hebb {

/// (x - mean) / (std + 1e-6) per row of x [N, size], std with divisor size - 1 (docs/layers/fwpkm.md, Retrieval).
Var z_score(Tape& tape, Var x);

/// sigmoid(mean over the columns of x [N, width]) -> [N] (docs/layers/fwpkm.md, Retrieval).
Var mean_gate(Tape& tape, Var x);

/// g a + (1 - g) b; a, b [N, size], g [N] (docs/layers/fwpkm.md, Retrieval).
Var gate_mix(Tape& tape, Var g, Var a, Var b);

}  // namespace hebb
