#include "layers/fast/memory_mix.h"

#include "kernels/memory_mix/memory_mix.h"

namespace hebb {

Var z_score(Tape& tape, Var x) {
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "normed values");
  const Tensor rstd = tape.saved({tape.shape(x)[0]}, sum_dtype(tape.dtype(x)), "value scale");
  run(tape.stream(), ZScore{tape.value(y), rstd, tape.value(x)});
  return tape.record(y, [=](Tape& tape) {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(),
          ZScoreBackward{
              .d_x = d.tensor, .d_y = tape.grad(y), .y = tape.value(y), .rstd = rstd, .accumulate = d.accumulate});
    }
  });
}

Var mean_gate(Tape& tape, Var x) {
  const Var g = tape.output({tape.shape(x)[0]}, tape.dtype(x), "memory gate");
  run(tape.stream(), MeanGate{tape.value(g), tape.value(x)});
  return tape.record(g, [=](Tape& tape) {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(),
          MeanGateBackward{.d_x = d.tensor, .d_g = tape.grad(g), .g = tape.value(g), .accumulate = d.accumulate});
    }
  });
}

Var gate_mix(Tape& tape, Var g, Var a, Var b) {
  const Var o = tape.output(tape.shape(a), tape.dtype(a), "mixed memory");
  run(tape.stream(), GateMix{.o = tape.value(o), .g = tape.value(g), .a = tape.value(a), .b = tape.value(b)});
  return tape.record(o, [=](Tape& tape) {
    const GradSlot d_g = tape.grad_slot(g), d_a = tape.grad_slot(a), d_b = tape.grad_slot(b);
    run(tape.stream(), GateMixBackward{.d_g = d_g.tensor,
                                       .d_a = d_a.tensor,
                                       .d_b = d_b.tensor,
                                       .d_o = tape.grad(o),
                                       .g = tape.value(g),
                                       .a = tape.value(a),
                                       .b = tape.value(b),
                                       .accumulate_g = d_g.accumulate,
                                       .accumulate_a = d_a.accumulate,
                                       .accumulate_b = d_b.accumulate});
  });
}

}  // namespace hebb
