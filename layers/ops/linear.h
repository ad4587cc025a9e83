#pragma once
#include "core/tape.h"

namespace hebb {

/// y [N, out] = x [N, in] weightᵀ (+ bias), weight [out, in], bias [out] or no Var. Views of x with
/// more dimensions count as [numel / in, in]. FLOPs: 2 N in out forward, twice that backward.
Var linear(Tape& tape, Var x, Var weight, Var bias = {});

}  // namespace hebb
