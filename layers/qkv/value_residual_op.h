#pragma once
#include "core/tape.h"

namespace hebb {

/// v + lambda (first - v) per channel: v, first [N, C]; mix [C] is lambda, or, `gated`, mix [N, C] with
/// lambda = sigmoid(mix). Source: docs/layers/attention.md, Value residual.
Var value_residual(Tape& tape, Var v, Var first, Var mix, bool gated);

}  // namespace hebb
