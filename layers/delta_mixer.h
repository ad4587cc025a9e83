#pragma once
#include "layers/convolved_projection.h"
#include "layers/ops/gated_delta.h"

namespace hebb {

/// What gdn and mamba2 share: three projections into one recurrence, the state that it carries, and statistics of it.
class DeltaMixer : public Layer {
 public:
  std::unique_ptr<LayerState> make_state(Arena& arena, int64_t rows, DType dtype) const override;
  void inspect_state(Stream& stream, const LayerState& state, int64_t tokens, Inspector& to) const override;
  /// The state in fp32, the inputs of the convolutions in bf16.
  int64_t state_bytes(int64_t tokens) const override;

 protected:
  DeltaMixer(const BuildContext& c, const DeltaConfig& delta);
  /// initial_state [HV, dk, dv], 0 at first. Decays like every tensor of two or more dimensions.
  void declare_initial_state(const BuildContext& c);

  /// Queries, keys and values of x [N, d], and every parameter; a, b and skip are left to the layer.
  DeltaInputs project(Pass& pass, Var x, const ConvolvedProjection& q, const ConvolvedProjection& k,
                      const ConvolvedProjection& v) const;
  /// The readings [N, HV dv]; advances `state` where there is one.
  Var read(Pass& pass, const DeltaInputs& in, LayerState* state) const;
  /// FLOPs per token of the convolutions.
  double convolution_flops() const;

  int64_t d_;
  double eps_;
  DeltaConfig delta_;
  Param *a_log_ = nullptr, *dt_bias_ = nullptr, *initial_state_ = nullptr;

 private:
  std::string name_;
};

}  // namespace hebb
