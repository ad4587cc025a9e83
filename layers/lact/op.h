#pragma once
#include "kernels/lact/lact.h"
#include "layers/layer.h"

namespace hebb {

/// Sizes of lact's fast weights: F heads of D channels, hidden size h.
struct LactShape {
  int64_t heads, dim, fast;
  int64_t weights() const { return 3 * dim * fast; }  // of one head
};

/// What decoding carries: W, M and what the chunk in progress has gathered (kernels/lact/lact.h).
struct LactState {
  Buffer weights, momentum, sums;  // [B, F, 3 h D]
  Buffer mix_sums;                 // [B, F]
  /// dtype: that of the readings.
  LactState(Arena& arena, int64_t rows, const LactShape& shape, DType dtype);
  std::vector<Tensor> by_row() const { return {weights, momentum, sums, mix_sums}; }
};

/// N = B T tokens.
struct LactInputs {
  Var q, k, v;     // [N, F D]
  Var rates;       // [N, 3 F] logits of the rates
  Var mix;         // [N, F] logits of the momentum; no Var without
  Var w0, w1, w2;  // [F, h, D] [F, D, h] [F, h, D]
};

/// y [N, F D]: what the queries read from fast weights that move chunk by chunk (docs/layers/lact.md, Update). Keeps
/// nothing but its inputs. Advances `state` when given.
Var lact_memory(Pass& pass, const LactInputs& in, const LactShape& shape, const LactRule& rule, LactState* state);

}  // namespace hebb
