#pragma once
// Parts that recurrent mixers share: projections with short convolutions, and gates by name.
#include <string>

#include "kernels/head_norm/head_norm.h"
#include "layers/ops/short_conv.h"

namespace hebb {

/// Declares the field of the width of causal convolutions: 0 = none, never 1.
void conv_width_field(Fields& f, std::string_view name, int64_t& width, std::string_view help);

/// Declares the field of a gate on a mixer's output.
Field& gate_field(Fields& f, std::string_view name, HeadGate& gate);

/// A projection of a mixer's input, and the causal convolution on it where there is one.
class ConvolvedProjection {
 public:
  /// Declares NAME_proj.weight [channels, hidden_size], drawn from normal(init_std).
  ConvolvedProjection(const BuildContext& c, std::string name, int64_t channels);

  /// Declares NAME_conv.weight [channels, width], drawn from normal(init_std); a width of 0 declares nothing.
  void declare_convolution(const BuildContext& c, int64_t width);
  /// Declares NAME_conv.bias [channels], 0 at first.
  void declare_bias(const BuildContext& c);

  /// x [N, hidden_size] projected: [N, channels], in `dtype` or that of x. The convolution is left to the operation.
  ConvolvedVars project(Pass& pass, Var x, std::optional<DType> dtype = {}) const;

 private:
  std::string name_;
  Param* proj_;
  Param *conv_ = nullptr, *bias_ = nullptr;
};

}  // namespace hebb
