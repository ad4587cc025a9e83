#include "layers/ops/activation.h"

#include "kernels/activation/activation.h"

namespace hebb {

Var swiglu(Tape& tape, Var gate, Var up) {
  const Var y = tape.output(tape.shape(gate), tape.dtype(gate), "swiglu");
  run(tape.stream(), SwigluForward{tape.value(y), tape.value(gate), tape.value(up)});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_gate = tape.grad_slot(gate), d_up = tape.grad_slot(up);
    HEBB_ASSERT(d_gate && d_up && !d_gate.accumulate && !d_up.accumulate);
    run(tape.stream(), SwigluBackward{.d_gate = d_gate.tensor,
                                      .d_up = d_up.tensor,
                                      .d_y = tape.grad(y),
                                      .gate = tape.value(gate),
                                      .up = tape.value(up)});
  });
}

Var relu2(Tape& tape, Var x) {
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "relu2");
  run(tape.stream(), Relu2Forward{tape.value(y), tape.value(x)});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d = tape.grad_slot(x);
    HEBB_ASSERT(d && !d.accumulate);
    run(tape.stream(), Relu2Backward{d.tensor, tape.grad(y), tape.value(x)});
  });
}

}  // namespace hebb
