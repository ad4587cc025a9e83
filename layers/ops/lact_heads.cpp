#include "layers/ops/lact_heads.h"

#include "kernels/gemm/gemm.h"
#include "kernels/lact/heads.h"

namespace hebb {
namespace {

struct LactKeysNode final : Node {
  Var x, scale, offset, y;
  Shape shape;  // [N, F, D]
  int64_t column;

  void backward(Tape& tape) override {
    const GradSlot d_x = tape.grad_slot(x);
    run(tape.workspace(), LactKeysBackward{.d_x = d_x ? d_x.tensor.view(shape) : Tensor{},
                                           .d_scale = tape.grad_slot(scale).tensor,
                                           .d_offset = tape.grad_slot(offset).tensor,
                                           .d_y = tape.grad(y).view(shape),
                                           .x = tape.value(x).view(shape),
                                           .scale = tape.value(scale),
                                           .offset = tape.value(offset),
                                           .column = column,
                                           .accumulate = d_x.accumulate});
  }
};

struct LactInitialNode final : Node {
  Var left, right, w;

  void backward(Tape& tape) override {
    const Shape l = tape.shape(left), r = tape.shape(right);
    const GradSlot d_left = tape.grad_slot(left), d_right = tape.grad_slot(right);
    for (int64_t head = 0; head < l[0]; ++head) {
      const auto of_head = [&](const Tensor& t) {
        return t.slice(head * t.size(1) * t.size(2), {t.size(1), t.size(2)});
      };
      const Tensor d_w = of_head(tape.grad(w).view({l[0], l[1], r[2]}));
      if (d_left) {
        run(tape.stream(), Gemm{.c = of_head(d_left.tensor),
                                .a = d_w,
                                .b = of_head(tape.value(right)),
                                .m = l[1],
                                .n = l[2],
                                .k = r[2],
                                .trans_b = true,
                                .accumulate = d_left.accumulate});
      }
      if (d_right) {
        run(tape.stream(), Gemm{.c = of_head(d_right.tensor),
                                .a = of_head(tape.value(left)),
                                .b = d_w,
                                .m = r[1],
                                .n = r[2],
                                .k = l[1],
                                .trans_a = true,
                                .accumulate = d_right.accumulate});
      }
    }
  }
};

struct LactMixNode final : Node {
  Var base, x, gate, y;
  Shape shape;  // [N, F, D]

  void backward(Tape& tape) override {
    const GradSlot d_x = tape.grad_slot(x), d_gate = tape.grad_slot(gate);
    run(tape.stream(), LactMixBackward{.d_x = d_x ? d_x.tensor.view(shape) : Tensor{},
                                       .d_gate = d_gate.tensor,
                                       .d_y = tape.grad(y).view(shape),
                                       .x = tape.value(x).view(shape),
                                       .gate = tape.value(gate),
                                       .accumulate_x = d_x.accumulate,
                                       .accumulate_gate = d_gate.accumulate});
    tape.pass_grad(base, y);
  }
};

}  // namespace

Var lact_keys(Tape& tape, Var x, Var scale, Var offset, int64_t column, int64_t head_dim) {
  LactKeysNode node;
  node.x = x;
  node.scale = scale;
  node.offset = offset;
  node.column = column;
  const int64_t channels = tape.shape(scale)[0], tokens = tape.shape(x).numel() / channels;
  node.shape = {tokens, channels / head_dim, head_dim};
  node.y = tape.output(tape.shape(x), tape.dtype(x), "fast keys");
  run(tape.stream(), LactKeysForward{.y = tape.value(node.y).view(node.shape),
                                     .x = tape.value(x).view(node.shape),
                                     .scale = tape.value(scale),
                                     .offset = tape.value(offset),
                                     .column = column});
  return tape.record(std::move(node), &LactKeysNode::y);
}

Var lact_initial(Tape& tape, Var left, Var right) {
  LactInitialNode node;
  node.left = left;
  node.right = right;
  const Shape l = tape.shape(left), r = tape.shape(right);
  node.w = tape.output({l[0], l[1], r[2]}, tape.dtype(left), "initial fast weights");
  const Tensor w = tape.value(node.w);
  run(tape.stream(), HalfIdentity{w});
  for (int64_t head = 0; head < l[0]; ++head) {
    run(tape.stream(), Gemm{.c = w.slice(head * l[1] * r[2], {l[1], r[2]}),
                            .a = tape.value(left).slice(head * l[1] * l[2], {l[1], l[2]}),
                            .b = tape.value(right).slice(head * r[1] * r[2], {r[1], r[2]}),
                            .m = l[1],
                            .n = r[2],
                            .k = l[2],
                            .accumulate = true});
  }
  return tape.record(std::move(node), &LactInitialNode::w);
}

Var lact_mix(Tape& tape, Var base, Var x, Var gate) {
  LactMixNode node;
  node.base = base;
  node.x = x;
  node.gate = gate;
  const Shape gates = tape.shape(gate);
  node.shape = {gates[0], gates[1], tape.shape(x).numel() / gates.numel()};
  node.y = tape.output(tape.shape(base), tape.dtype(x), "mixed outputs");
  run(tape.stream(), LactMixForward{.y = tape.value(node.y).view(node.shape),
                                    .base = tape.value(base).view(node.shape),
                                    .x = tape.value(x).view(node.shape),
                                    .gate = tape.value(gate)});
  return tape.record(std::move(node), &LactMixNode::y);
}

}  // namespace hebb
