#include "layers/delta_mixer.h"

#include <algorithm>

#include "layers/model_config.h"
#include "layers/ops/host_values.h"

namespace hebb {

DeltaMixer::DeltaMixer(const BuildContext& c, const DeltaConfig& delta)
    : d_(c.model.hidden_size), eps_(c.model.norm_eps), delta_(delta), name_(c.name) {}

std::unique_ptr<LayerState> DeltaMixer::make_state(Arena& arena, int64_t rows, DType dtype) const {
  return std::make_unique<DeltaState>(arena, rows, delta_, dtype);
}

void DeltaMixer::inspect_state(Stream& stream, const LayerState& state, int64_t, Inspector& to) const {
  to.records[name_ + ".state"] = record_of(stream, static_cast<const DeltaState&>(state).memory);
}

int64_t DeltaMixer::state_bytes(int64_t) const {
  constexpr int64_t kStateBytes = 4, kInputBytes = 2;  // fp32, bf16
  const int64_t inputs =
      std::max<int64_t>(0, delta_.conv_size - 1) * (2 * delta_.key_channels() + delta_.value_channels());
  return kStateBytes * delta_.key_dim * delta_.value_channels() + kInputBytes * inputs;
}

void DeltaMixer::declare_initial_state(const BuildContext& c) {
  initial_state_ =
      &c.declare("initial_state", {delta_.value_heads, delta_.key_dim, delta_.value_dim}, init::constant(0.0));
}

DeltaInputs DeltaMixer::project(Pass& pass, Var x, const ConvolvedProjection& q, const ConvolvedProjection& k,
                                const ConvolvedProjection& v) const {
  DeltaInputs in;
  in.q = q.project(pass, x);  // [N, H dk]
  in.k = k.project(pass, x);  // [N, H dk]
  in.v = v.project(pass, x);  // [N, HV dv]
  in.a_log = pass.param(*a_log_);
  in.dt_bias = pass.param(*dt_bias_);
  in.initial_state = pass.param(initial_state_);
  return in;
}

Var DeltaMixer::read(Pass& pass, const DeltaInputs& in, LayerState* state) const {
  return gated_delta(pass, in, delta_, static_cast<DeltaState*>(state));
}

double DeltaMixer::convolution_flops() const {
  const double taps = static_cast<double>(delta_.conv_size);
  return taps > 0 ? (2 * taps + 3) * static_cast<double>(2 * delta_.key_channels() + delta_.value_channels()) : 0;
}

}  // namespace hebb
