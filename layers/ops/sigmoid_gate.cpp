#include "layers/ops/sigmoid_gate.h"

#include "kernels/sigmoid_gate/sigmoid_gate.h"

namespace hebb {

Var sigmoid_gate(Tape& tape, Var x, Var gate, int64_t heads) {
  const int64_t elements = tape.shape(x).numel(), gates = tape.shape(gate).numel();
  const int64_t tokens = tape.shape(x)[0];
  HEBB_ASSERT(gates == elements || gates == tokens * heads);
  const Shape shape{tokens, heads, elements / (tokens * heads)};
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "gated");
  run(tape.stream(), SigmoidGateForward{tape.value(y).view(shape), tape.value(x).view(shape), tape.value(gate)});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_x = tape.grad_slot(x), d_gate = tape.grad_slot(gate);
    run(tape.stream(), SigmoidGateBackward{.d_x = d_x.view(shape),
                                           .d_gate = d_gate.tensor,
                                           .d_y = tape.grad(y).view(shape),
                                           .x = tape.value(x).view(shape),
                                           .gate = tape.value(gate),
                                           .accumulate_x = d_x.accumulate,
                                           .accumulate_gate = d_gate.accumulate});
  });
}

}  // namespace hebb
