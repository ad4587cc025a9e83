#pragma once
#include <optional>

#include "core/tape.h"

namespace hebb {

/// y [N, out] = x [N, in] weightᵀ (+ bias), weight [out, in], bias [out] or no Var. Views of x with
/// more dimensions count as [numel / in, in]. The operands have x's type: bf16 takes the weight's rounded copy,
/// fp32 the weight itself. dtype: of y, x's by default; fp32 keeps the sums of bf16 products as they are. FLOPs: 2 N in
/// out forward, twice that backward.
Var linear(Tape& tape, Var x, Var weight, Var bias = {}, std::optional<DType> dtype = {});

/// linear(swiglu(gate, up), weight) with the same bits: gate, up [N, in], weight [out, in]. It keeps gate and up alone;
/// the backward pass makes silu(gate) * up again.
Var swiglu_linear(Tape& tape, Var gate, Var up, Var weight);

}  // namespace hebb
