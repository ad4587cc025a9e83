#pragma once
#include "core/tape.h"

namespace hebb {

/// silu(gate) * up, elementwise.
Var swiglu(Tape& tape, Var gate, Var up);
/// max(x, 0)^2.
Var relu2(Tape& tape, Var x);

}  // namespace hebb
