#pragma once
#include <optional>

#include "core/tape.h"
#include "kernels/head_norm/head_norm.h"

namespace hebb {

/// x / sqrt(sum x^2 + 1e-6) per head of head_dim channels; x [N, heads * head_dim]. Keeps its output.
/// Source: docs/model.md, Norms.
Var l2_norm(Tape& tape, Var x, int64_t head_dim);

/// rms(o; weight) * gate(z) per head of head_dim channels; o, z [N, heads * head_dim], weight [head_dim]
/// shared by the heads, or [heads * head_dim]. gate_first: rms(o * gate(z); weight). No weight: no norm;
/// HeadGate::none: no z. Keeps o and z. dtype: of the result and z, o's by default; bf16 where o is fp32, so
/// that neither o nor its gradient, which the norm makes orthogonal to o, is rounded.
/// Source: docs/layers/gdn.md and mamba2.md, Recurrence.
Var gated_norm(Tape& tape, Var o, Var z, Var weight, int64_t head_dim, double eps, HeadGate gate,
               bool gate_first = false, std::optional<DType> dtype = {});

}  // namespace hebb
