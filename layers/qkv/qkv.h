#pragma once
#include <memory>
#include <optional>

#include "layers/heads_config.h"
#include "layers/ops/norm.h"
#include "layers/ops/token_shift.h"
#include "layers/qkv/value_residual.h"
#include "layers/rope_config.h"

namespace hebb {

/// Fields that `attention` and `kvm` share (docs/layers/attention.md, Keys).
struct QkvConfig : HeadsConfig {
  std::optional<RopeConfig> rope;
  std::string qk_norm = "none";
  bool rope_is_partial = false;  // not a field: rope.dims must be given, below head_dim
  bool token_shift = false;
  ValueResidualConfig value_residual;

  void fields(Fields& f, const std::vector<std::string>& qk_norms);
};

/// What Qkv carries: the last token's channels before their shift.
struct QkvState {
  std::optional<TokenShiftState> q, k, v;
  std::vector<Tensor> by_row() const {
    return q ? std::vector<Tensor>{q->previous, k->previous, v->previous} : std::vector<Tensor>{};
  }
};

/// From the mixer's input to queries, keys and values, in the order projection, value residual, token
/// shift, norm per head, RoPE (docs/layers/attention.md, Forward).
class Qkv {
 public:
  /// Declares q_proj, k_proj, v_proj with `matrix` as initial values, and what the options need.
  Qkv(const BuildContext& c, const QkvConfig& config, const Init& matrix);

  struct Heads {
    Var q, k, v;  // [B T, H D], [B T, K D], [B T, K Dv]
  };
  Heads forward(Pass& pass, Var x, QkvState* state) const;
  QkvState make_state(Arena& arena, int64_t rows, DType dtype) const;

  /// Factor of the logits: 1 for unit queries and keys (beta is in q), else D^-1/2.
  double scale() const;
  double flops_per_token() const;
  /// Numbers of a QkvState for one row.
  int64_t carried() const;

 private:
  struct HeadNorm {
    NormParams params;
    Param* beta = nullptr;
  };
  Var normalize(Pass& pass, Var x, const HeadNorm& n) const;
  int64_t channels() const;  // of q, k and v together

  QkvConfig config_;
  int64_t d_;
  double norm_eps_;
  Param *q_proj_, *k_proj_, *v_proj_;
  HeadNorm q_norm_, k_norm_;
  Param *q_shift_ = nullptr, *k_shift_ = nullptr, *v_shift_ = nullptr;
  std::optional<ValueResidual> value_residual_;
};

}  // namespace hebb
