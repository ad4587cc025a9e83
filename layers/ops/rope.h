#pragma once
#include "kernels/rope/rope.h"
#include "layers/layer.h"

namespace hebb {

/// Rotates q or k: x [B T, heads D] or any view of it; positions are t - doc_start, continuing a
/// carried state. The table of cos and sin is made once a pass for every spec (pass.shared) from
/// angles in double. Returns a new value shaped like x. Source: docs/layers/attention.md, Rotary positions.
/// Pass::yarn replaces the spec's own extension.
Var rope(Pass& pass, Var x, int64_t heads, const RopeSpec& spec);

}  // namespace hebb
