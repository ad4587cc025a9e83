#include "layers/qkv/value_residual_op.h"

#include "kernels/value_residual/value_residual.h"

namespace hebb {

Var value_residual(Tape& tape, Var v, Var first, Var mix, bool gated) {
  HEBB_ASSERT(tape.shape(v).rank == 2 && tape.shape(first) == tape.shape(v));
  HEBB_ASSERT(tape.shape(mix).numel() == (gated ? tape.shape(v).numel() : tape.shape(v)[1]));
  const Var y = tape.output(tape.shape(v), tape.dtype(v), "value residual");
  run(tape.stream(),
      ValueResidualForward{
          .y = tape.value(y), .v = tape.value(v), .first = tape.value(first), .mix = tape.value(mix), .gated = gated});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_v = tape.grad_slot(v), d_first = tape.grad_slot(first), d_mix = tape.grad_slot(mix);
    HEBB_ASSERT(gated || !d_mix || d_mix.accumulate);
    run(tape.workspace(), ValueResidualBackward{.d_v = d_v.tensor,
                                                .d_first = d_first.tensor,
                                                .d_mix = d_mix.tensor,
                                                .d_y = tape.grad(y),
                                                .v = tape.value(v),
                                                .first = tape.value(first),
                                                .mix = tape.value(mix),
                                                .gated = gated,
                                                .accumulate_v = d_v.accumulate,
                                                .accumulate_first = d_first.accumulate,
                                                .accumulate_mix = d_mix.accumulate});
  });
}

}  // namespace hebb
