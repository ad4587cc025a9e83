#include "layers/ops/scaled_l2_norm.h"

#include "kernels/scaled_l2_norm/scaled_l2_norm.h"

namespace hebb {

Var scaled_l2_norm(Tape& tape, Var x, int64_t head_dim, Var scale) {
  const int64_t heads = tape.shape(scale).numel();
  const Shape shape{tape.shape(x).numel() / (heads * head_dim), heads, head_dim};
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "l2 norm");
  run(tape.stream(), ScaledL2NormForward{tape.value(y).view(shape), tape.value(x).view(shape), tape.value(scale)});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_x = tape.grad_slot(x), d_scale = tape.grad_slot(scale);
    run(tape.workspace(), ScaledL2NormBackward{.d_x = d_x.view(shape),
                                               .d_scale = d_scale.tensor,
                                               .d_y = tape.grad(y).view(shape),
                                               .x = tape.value(x).view(shape),
                                               .scale = tape.value(scale),
                                               .accumulate = d_x.accumulate});
  });
}

}  // namespace hebb
