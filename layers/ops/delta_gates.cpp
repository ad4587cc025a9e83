#include "layers/ops/delta_gates.h"

#include "kernels/delta_gates/delta_gates.h"

namespace hebb {

void DeltaGates::forward(Tape& tape, const Tensor& g, const Tensor& beta) const {
  run(tape.stream(), DeltaGatesForward{.g = g,
                                       .beta = beta,
                                       .a = tape.value(a),
                                       .b = tape.value_or_none(b),
                                       .a_log = tape.value(a_log),
                                       .dt_bias = tape.value(dt_bias),
                                       .beta_scale = beta_scale,
                                       .dt_low = dt_low,
                                       .dt_high = dt_high});
}

void DeltaGates::backward(Tape& tape, const Tensor& g, const Tensor& beta, const Tensor& d_g,
                          const Tensor& d_beta) const {
  const GradSlot d_a = tape.grad_slot(a), d_b = b ? tape.grad_slot(b) : GradSlot{};
  run(tape.workspace(), DeltaGatesBackward{.d_a = d_a.tensor,
                                           .d_b = d_b.tensor,
                                           .d_a_log = tape.grad_slot(a_log).tensor,
                                           .d_dt_bias = tape.grad_slot(dt_bias).tensor,
                                           .d_g = d_g,
                                           .d_beta = d_beta,
                                           .g = g,
                                           .beta = beta,
                                           .a = tape.value(a),
                                           .a_log = tape.value(a_log),
                                           .dt_bias = tape.value(dt_bias),
                                           .beta_scale = beta_scale,
                                           .accumulate_a = d_a.accumulate,
                                           .accumulate_b = d_b.accumulate,
                                           .b_is_step = !b,
                                           .dt_low = dt_low,
                                           .dt_high = dt_high});
}

}  // namespace hebb
