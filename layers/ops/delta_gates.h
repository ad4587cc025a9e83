#pragma once
#include <limits>

#include "core/tape.h"

namespace hebb {

/// What decay and write strength of a delta rule are made of. For nodes that compute them again in the backward pass
/// (kernels/delta_gates/delta_gates.h).
struct DeltaGates {
  Var a, b;            // [N, heads] logits of decay and strength; no b: the strength is the step size
  Var a_log, dt_bias;  // [heads]
  double beta_scale = 1.0;
  double dt_low = 0, dt_high = std::numeric_limits<double>::infinity();  // of the step size

  /// g = log of the decay and beta = strength, both with N heads elements.
  void forward(Tape& tape, const Tensor& g, const Tensor& beta) const;
  /// From the gradients at g and beta to those of the inputs.
  void backward(Tape& tape, const Tensor& g, const Tensor& beta, const Tensor& d_g, const Tensor& d_beta) const;
};

}  // namespace hebb
