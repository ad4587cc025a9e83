#include "layers/ops/token_shift.h"

#include <cmath>

#include "kernels/token_shift/token_shift.h"

namespace hebb {

Var token_shift(Pass& pass, Var x, Var mu, bool zero_start, TokenShiftState* state) {
  Tape& tape = pass.tape;
  const Shape shape{pass.batch(), pass.length(), tape.shape(mu).numel()};
  const Tensor doc_start = pass.rows.doc_start(), in = tape.value(x).view(shape);
  const Var y = tape.output({pass.tokens(), shape[2]}, tape.dtype(x), "token shift");
  run(tape.stream(), TokenShiftForward{.y = tape.value(y),
                                       .x = in,
                                       .mu = tape.value(mu),
                                       .previous = state != nullptr ? state->previous.tensor() : Tensor{},
                                       .doc_start = doc_start,
                                       .zero_start = zero_start});
  if (state != nullptr) { keep_last(tape.stream(), state->previous, in); }
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_x = tape.grad_slot(x), d_mu = tape.grad_slot(mu);
    run(tape.workspace(), TokenShiftBackward{.d_x = d_x.tensor,
                                             .d_mu = d_mu.tensor,
                                             .d_y = tape.grad(y).view(shape),
                                             .x = tape.value(x).view(shape),
                                             .mu = tape.value(mu),
                                             .doc_start = doc_start,
                                             .zero_start = zero_start,
                                             .accumulate = d_x.accumulate});
  });
}

Init token_shift_init(double power) {
  return [power](Rng&, float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(1.0 - std::pow(static_cast<double>(i) / static_cast<double>(count), power));
    }
  };
}

}  // namespace hebb
