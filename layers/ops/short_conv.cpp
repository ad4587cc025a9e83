#include "layers/ops/short_conv.h"

#include "kernels/short_conv/short_conv.h"

namespace hebb {

Var short_conv(Pass& pass, Var x, Var weight, Var bias, bool silu, ShortConvState* state) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(weight || (!bias && state == nullptr));
  const Tensor doc_start = pass.rows.doc_start();
  const Shape shape{pass.batch(), pass.length(), tape.shape(x).numel() / pass.tokens()};
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "convolution");
  const Tensor input = tape.value(x).view(shape), previous = state != nullptr ? state->previous.tensor() : Tensor{};
  run(tape.stream(), ShortConvForward{.y = tape.value(y).view(shape),
                                      .x = input,
                                      .weight = tape.value_or_none(weight),
                                      .bias = tape.value_or_none(bias),
                                      .previous = previous,
                                      .doc_start = doc_start,
                                      .silu = silu});
  if (state != nullptr) { run(tape.stream(), ShortConvShift{previous, input}); }
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_x = tape.grad_slot(x);
    run(tape.workspace(), ShortConvBackward{.d_x = d_x.view(shape),
                                            .d_weight = tape.grad_slot(weight).tensor,
                                            .d_bias = tape.grad_slot(bias).tensor,
                                            .d_y = tape.grad(y).view(shape),
                                            .x = tape.value(x).view(shape),
                                            .weight = tape.value_or_none(weight),
                                            .bias = tape.value_or_none(bias),
                                            .doc_start = doc_start,
                                            .silu = silu,
                                            .accumulate = d_x.accumulate});
  });
}

}  // namespace hebb
