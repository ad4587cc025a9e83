#pragma once
#include "core/tape.h"

namespace hebb {

/// x * sigmoid(gate): x [N, heads C]; gate [N, heads] (one number a head) or
/// [N, heads C]. Source: docs/layers/attention.md, Forward.
Var sigmoid_gate(Tape& tape, Var x, Var gate, int64_t heads);

}  // namespace hebb
