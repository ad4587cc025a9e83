#pragma once
#include "kernels/mesanet/mesanet.h"
#include "layers/ops/short_conv.h"

namespace hebb {

/// Sizes and variants of a mesa recurrence with its norms and convolutions (docs/layers/mesanet.md, Keys).
struct MesanetOptions {
  int64_t heads = 0, key_dim = 0, value_dim = 0;
  int64_t conv_size = 0;  // 0: no convolution
  bool silu = true;       // on q and k, after the convolution
  bool l2_norm = true;    // of q and k, per head
  MesanetRule rule;
  int64_t decode_steps = 0;  // of conjugate gradients for single tokens of a carried row
  int64_t chunk = 64;

  int64_t key_channels() const { return heads * key_dim; }
  int64_t value_channels() const { return heads * value_dim; }
};

/// What decoding carries: inputs of the convolutions, R and S.
struct MesanetState final : DeviceState {
  std::unique_ptr<ShortConvState> q, k;  // null without convolutions
  Buffer keys, values;                   // [B, H, dk, dk] [B, H, dk, dv]
  MesanetState(Arena& arena, int64_t rows, const MesanetOptions& config, DType dtype);
  std::vector<Tensor> by_row() const override {
    std::vector<Tensor> all{keys, values};
    for (const ShortConvState* path : {q.get(), k.get()}) {
      if (path != nullptr) { all.push_back(path->previous); }
    }
    return all;
  }
};

/// N = B T tokens.
struct MesanetInputs {
  ConvolvedVars q, k;  // [N, H dk] raw projections
  Var v;               // [N, H dv]
  Var a, b;            // [N, H] logits of decay and write strength
  Var lambda_raw;      // [H, dk]
};

/// o [N, H dv]: from raw projections to the readings, in one node (docs/layers/mesanet.md). Keeps its inputs and
/// the solutions [N, H dk]. Advances `state` when given; one token of it is solved with decode_steps. On steps
/// that are logged the residuals |q - x A| / |q| go to the statistics of `name`.
Var mesa(Pass& pass, const MesanetInputs& in, const MesanetOptions& config, MesanetState* state,
         const std::string& name);

}  // namespace hebb
