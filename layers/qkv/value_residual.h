#pragma once
#include <string>

#include "layers/layer.h"
#include "layers/ops/norm.h"

namespace hebb {

/// The `value_residual*` fields of `attention` and `kvm` (docs/layers/attention.md, Value residual).
struct ValueResidualConfig {
  std::string kind = "none";  // lambda, gated
  int64_t rank = 32;
  std::string group = "main", source = "first";

  void fields(Fields& f);
  bool on() const { return kind != "none"; }
};

/// Base of layer configurations that can belong to a value-residual group.
class ValueResidualMember {
 public:
  virtual ~ValueResidualMember() = default;
  virtual const ValueResidualConfig& value_residual() const = 0;
  virtual int64_t value_channels() const = 0;  // K Dv

 protected:
  /// All blocks of the group must agree in their number of value channels; for LayerConfig::check.
  void check_group(const Fields& f, const std::string& key, const ModelConfig& model) const;
};

/// v + lambda (v_first - v) of one block: its parameters, and its part in making v_first. Which block
/// makes v_first is decided when the model is built, so that recomputation changes nothing.
class ValueResidual {
 public:
  ValueResidual(const BuildContext& c, const ValueResidualConfig& config, int64_t channels);

  /// x [N, d]: the mixer's input; v [N, C] = x v_projᵀ.
  Var apply(Pass& pass, Var x, Var v, Param& v_proj) const;
  double flops_per_token() const;

 private:
  Var from_embeddings(Pass& pass, Param& v_proj) const;
  void publish(Pass& pass, Var v, Param& v_proj) const;

  ValueResidualConfig config_;
  int64_t d_, channels_;
  bool is_first_ = false;                               // this block makes v_first of its group
  bool starts_from_embeddings_ = false;                 // its mixer's input is mixer_norm(h_0)
  bool gives_first_ = false, gives_embedding_ = false;  // sources that later blocks want of it
  NormParams mixer_norm_;
  double norm_eps_;
  NormKind norm_kind_;
  Param *lambda_ = nullptr, *down_ = nullptr, *up_ = nullptr, *bias_ = nullptr;
};

}  // namespace hebb
