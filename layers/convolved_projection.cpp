#include "layers/convolved_projection.h"

#include "core/choice.h"
#include "layers/model_config.h"
#include "layers/ops/linear.h"

namespace hebb {

void conv_width_field(Fields& f, std::string_view name, int64_t& width, std::string_view help) {
  f.field(name, width).min(0).help(help);
  f.require(width != 1, name, "0 or an integer >= 2");
}

Field& gate_field(Fields& f, std::string_view name, HeadGate& gate) {
  return choice(f, name, gate, {{"silu", HeadGate::silu}, {"sigmoid", HeadGate::sigmoid}, {"none", HeadGate::none}});
}

ConvolvedProjection::ConvolvedProjection(const BuildContext& c, std::string name, int64_t channels)
    : name_(std::move(name)),
      proj_(&c.declare(name_ + "_proj.weight", {channels, c.model.hidden_size}, init::normal(c.model.init_std))) {}

void ConvolvedProjection::declare_convolution(const BuildContext& c, int64_t width) {
  if (width == 0) { return; }
  conv_ =
      &c.declare(name_ + "_conv.weight", {proj_->spec.shape[0], width}, init::normal(c.model.init_std)).read_in_fp32();
}

void ConvolvedProjection::declare_bias(const BuildContext& c) {
  bias_ = &c.declare(name_ + "_conv.bias", {proj_->spec.shape[0]}, init::constant(0));
}

ConvolvedVars ConvolvedProjection::project(Pass& pass, Var x, std::optional<DType> dtype) const {
  return {linear(pass.tape, x, pass.param(*proj_), {}, dtype), pass.param(conv_), pass.param(bias_)};
}

}  // namespace hebb
