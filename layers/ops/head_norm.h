#pragma once
#include <optional>

#include "core/tape.h"
#include "kernels/head_norm/head_norm.h"

namespace hebb {

/// x / sqrt(sum x^2 + 1e-6) per head of head_dim channels; x [N, heads * head_dim]. Keeps its output.
/// Source: docs/model.md, Norms.
Var l2_norm(Tape& tape, Var x, int64_t head_dim);

struct GatedNorm {          // beside o [N, heads * head_dim]
  Var z = {}, weight = {};  // [N, heads * head_dim]; [head_dim] for all heads, or [heads * head_dim]
  int64_t head_dim = 0;
  double eps = 0;
  HeadGate gate = HeadGate::none;   // none: no z
  bool gate_first = false;          // rms(o * gate(z); weight)
  std::optional<DType> dtype = {};  // of the result and z, o's by default; bf16 where o is fp32, so that neither o nor
                                    // its gradient, which the norm makes orthogonal to o, is rounded
};

/// rms(o; weight) * gate(z) per head of head_dim channels; o [N, heads * head_dim]. No weight: no norm. Keeps o and z.
/// Source: docs/layers/gdn.md and mamba2.md, Recurrence.
Var gated_norm(Tape& tape, Var o, const GatedNorm& options);

}  // namespace hebb
