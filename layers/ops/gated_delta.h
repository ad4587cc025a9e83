#pragma once
#include <limits>

#include "layers/ops/short_conv.h"

namespace hebb {

/// Sizes and variants of a gated delta rule with its gates, norms and convolutions (docs/layers/gdn.md, Keys).
struct DeltaConfig {
  int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t conv_size = 0;    // 0: no convolution
  bool silu = true;         // on q, k, v, after the convolution
  bool l2_norm = true;      // of q and k, per head
  double beta_scale = 1.0;  // 2 allows negative eigenvalues
  int64_t chunk = 64;
  bool additive = false;  // Mamba-2: writes dt v without the delta rule, dt from a within the limits; q is not scaled
  double dt_low = 0, dt_high = std::numeric_limits<double>::infinity();

  int64_t key_channels() const { return key_heads * key_dim; }
  int64_t value_channels() const { return value_heads * value_dim; }
};

/// What decoding carries: inputs of the convolutions and the state S.
struct DeltaState final : DeviceState {
  std::unique_ptr<ShortConvState> q, k, v;  // null without convolutions
  Buffer memory;                            // [B, HV, dk, dv]
  DeltaState(Arena& arena, int64_t rows, const DeltaConfig& config, DType dtype);
  std::vector<Tensor> by_row() const override {
    std::vector<Tensor> all{memory};
    for (const ShortConvState* path : {q.get(), k.get(), v.get()}) {
      if (path != nullptr) { all.push_back(path->previous); }
    }
    return all;
  }
};

/// N = B T tokens; all of one type, parameters as pass.param gives them.
struct DeltaInputs {
  ConvolvedVars q, k, v;  // [N, H dk] [N, H dk] [N, HV dv] raw projections
  Var a, b;               // [N, HV] logits of decay and write strength (additive: no b)
  Var a_log, dt_bias;     // [HV]
  Var initial_state;      // [HV, dk, dv], or no Var: 0
  Var skip;               // [HV] or [HV dv]: o += skip v, or no Var
};

/// Memory of the caller for what a router looks at, both [N, HV dv] or undefined: v after convolution and
/// activation, and k_t S_{t-1} before the token's decay and write. No gradient flows through them.
struct DeltaProbe {
  Tensor value, prediction;
};

/// From raw projections to the readings of the recurrence, in one node: convolutions, activation, l2
/// norms, gates, gated delta rule (docs/layers/gdn.md), or additive writes (docs/layers/mamba2.md). Keeps nothing but
/// its inputs: the rest is computed again backward. Advances `state` when given; few tokens then run step by step.
/// Returns o [N, HV dv]. FLOPs per token: see kernels/gated_delta/gated_delta.h.
Var gated_delta(Pass& pass, const DeltaInputs& in, const DeltaConfig& config, DeltaState* state,
                const DeltaProbe& probe = {});

}  // namespace hebb
