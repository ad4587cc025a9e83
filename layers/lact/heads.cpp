#include "layers/lact/heads.h"

#include "kernels/gemm/gemm.h"
#include "kernels/lact/heads.h"

namespace hebb {

Var lact_keys(Tape& tape, Var x, Var scale, Var offset, int64_t column, int64_t head_dim) {
  const int64_t channels = tape.shape(scale)[0], tokens = tape.shape(x).numel() / channels;
  const Shape shape{tokens, channels / head_dim, head_dim};
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "fast keys");
  run(tape.stream(), LactKeysForward{.y = tape.value(y).view(shape),
                                     .x = tape.value(x).view(shape),
                                     .scale = tape.value(scale),
                                     .offset = tape.value(offset),
                                     .column = column});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_x = tape.grad_slot(x);
    run(tape.workspace(), LactKeysBackward{.d_x = d_x.view(shape),
                                           .d_scale = tape.grad_slot(scale).tensor,
                                           .d_offset = tape.grad_slot(offset).tensor,
                                           .d_y = tape.grad(y).view(shape),
                                           .x = tape.value(x).view(shape),
                                           .scale = tape.value(scale),
                                           .offset = tape.value(offset),
                                           .column = column,
                                           .accumulate = d_x.accumulate});
  });
}

Var lact_initial(Tape& tape, Var left, Var right) {
  const Shape l = tape.shape(left), r = tape.shape(right), shape{l[0], l[1], r[2]};
  const auto of_head = [](const Tensor& t, int64_t head) {
    return t.slice(head * t.size(1) * t.size(2), {t.size(1), t.size(2)});
  };
  const Var w = tape.output(shape, tape.dtype(left), "initial fast weights");
  run(tape.stream(), HalfIdentity{tape.value(w)});
  for (int64_t head = 0; head < l[0]; ++head) {
    run(tape.stream(), Gemm{.c = of_head(tape.value(w), head),
                            .a = of_head(tape.value(left), head),
                            .b = of_head(tape.value(right), head),
                            .m = l[1],
                            .n = r[2],
                            .k = l[2],
                            .accumulate = true});
  }
  return tape.record(w, [=](Tape& tape) {
    const GradSlot d_left = tape.grad_slot(left), d_right = tape.grad_slot(right);
    for (int64_t head = 0; head < l[0]; ++head) {
      const Tensor d_w = of_head(tape.grad(w).view(shape), head);
      if (d_left) {
        run(tape.stream(), Gemm{.c = of_head(d_left.tensor, head),
                                .a = d_w,
                                .b = of_head(tape.value(right), head),
                                .m = l[1],
                                .n = l[2],
                                .k = r[2],
                                .trans_b = true,
                                .accumulate = d_left.accumulate});
      }
      if (d_right) {
        run(tape.stream(), Gemm{.c = of_head(d_right.tensor, head),
                                .a = of_head(tape.value(left), head),
                                .b = d_w,
                                .m = r[1],
                                .n = r[2],
                                .k = l[1],
                                .trans_a = true,
                                .accumulate = d_right.accumulate});
      }
    }
  });
}

Var lact_mix(Tape& tape, Var base, Var x, Var gate) {
  const Shape gates = tape.shape(gate), shape{gates[0], gates[1], tape.shape(x).numel() / gates.numel()};
  const Var y = tape.output(tape.shape(base), tape.dtype(x), "mixed outputs");
  run(tape.stream(), LactMixForward{.y = tape.value(y).view(shape),
                                    .base = tape.value(base).view(shape),
                                    .x = tape.value(x).view(shape),
                                    .gate = tape.value(gate)});
  return tape.record(y, [=](Tape& tape) {
    const GradSlot d_x = tape.grad_slot(x), d_gate = tape.grad_slot(gate);
    run(tape.stream(), LactMixBackward{.d_x = d_x.view(shape),
                                       .d_gate = d_gate.tensor,
                                       .d_y = tape.grad(y).view(shape),
                                       .x = tape.value(x).view(shape),
                                       .gate = tape.value(gate),
                                       .accumulate_x = d_x.accumulate,
                                       .accumulate_gate = d_gate.accumulate});
    tape.pass_grad(base, y);
  });
}

}  // namespace hebb
