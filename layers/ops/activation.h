#pragma once
#include "core/tape.h"

namespace hebb {

/// silu(gate) * up, elementwise; shaped like gate and up. Keeps both. Source: docs/layers/ffn.md, Swiglu.
Var swiglu(Tape& tape, Var gate, Var up);
/// max(x, 0)^2, elementwise; shaped like x. Keeps x. Source: docs/layers/ffn.md, Relu2.
Var relu2(Tape& tape, Var x);

}  // namespace hebb
