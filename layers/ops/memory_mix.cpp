#include "layers/ops/memory_mix.h"

#include "kernels/memory_mix/memory_mix.h"

namespace hebb {
namespace {

struct ZScoreNode final : Node {
  Var x, y;
  Tensor rstd;

  void backward(Tape& tape) override {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(),
          ZScoreBackward{
              .d_x = d.tensor, .d_y = tape.grad(y), .y = tape.value(y), .rstd = rstd, .accumulate = d.accumulate});
    }
  }
};

struct MeanGateNode final : Node {
  Var x, g;

  void backward(Tape& tape) override {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(),
          MeanGateBackward{.d_x = d.tensor, .d_g = tape.grad(g), .g = tape.value(g), .accumulate = d.accumulate});
    }
  }
};

struct GateMixNode final : Node {
  Var g, a, b, o;

  void backward(Tape& tape) override {
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
  }
};

}  // namespace

Var z_score(Tape& tape, Var x) {
  ZScoreNode node;
  node.x = x;
  node.y = tape.output(tape.shape(x), tape.dtype(x), "normed values");
  node.rstd = tape.saved({tape.shape(x)[0]}, sum_dtype(tape.dtype(x)), "value scale");
  run(tape.stream(), ZScore{tape.value(node.y), node.rstd, tape.value(x)});
  return tape.record(std::move(node), &ZScoreNode::y);
}

Var mean_gate(Tape& tape, Var x) {
  MeanGateNode node;
  node.x = x;
  node.g = tape.output({tape.shape(x)[0]}, tape.dtype(x), "memory gate");
  run(tape.stream(), MeanGate{tape.value(node.g), tape.value(x)});
  return tape.record(std::move(node), &MeanGateNode::g);
}

Var gate_mix(Tape& tape, Var g, Var a, Var b) {
  GateMixNode node;
  node.g = g;
  node.a = a;
  node.b = b;
  node.o = tape.output(tape.shape(a), tape.dtype(a), "mixed memory");
  run(tape.stream(), GateMix{.o = tape.value(node.o), .g = tape.value(g), .a = tape.value(a), .b = tape.value(b)});
  return tape.record(std::move(node), &GateMixNode::o);
}

}  // namespace hebb
