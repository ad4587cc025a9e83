#include "layers/ops/activation.h"

#include "kernels/activation/activation.h"

namespace hebb {
namespace {

struct SwigluNode final : Node {
  Var gate, up, y;

  void backward(Tape& tape) override {
    const GradSlot d_gate = tape.grad_slot(gate), d_up = tape.grad_slot(up);
    HEBB_ASSERT(d_gate && d_up && !d_gate.accumulate && !d_up.accumulate);
    run(tape.stream(), SwigluBackward{.d_gate = d_gate.tensor,
                                      .d_up = d_up.tensor,
                                      .d_y = tape.grad(y),
                                      .gate = tape.value(gate),
                                      .up = tape.value(up)});
  }
};

struct Relu2Node final : Node {
  Var x, y;

  void backward(Tape& tape) override {
    const GradSlot d = tape.grad_slot(x);
    HEBB_ASSERT(d && !d.accumulate);
    run(tape.stream(), Relu2Backward{d.tensor, tape.grad(y), tape.value(x)});
  }
};

}  // namespace

Var swiglu(Tape& tape, Var gate, Var up) {
  SwigluNode node;
  node.gate = gate;
  node.up = up;
  node.y = tape.output(tape.shape(gate), tape.dtype(gate), "swiglu");
  run(tape.stream(), SwigluForward{tape.value(node.y), tape.value(gate), tape.value(up)});
  return tape.record(std::move(node), &SwigluNode::y);
}

Var relu2(Tape& tape, Var x) {
  Relu2Node node;
  node.x = x;
  node.y = tape.output(tape.shape(x), tape.dtype(x), "relu2");
  run(tape.stream(), Relu2Forward{tape.value(node.y), tape.value(x)});
  return tape.record(std::move(node), &Relu2Node::y);
}

}  // namespace hebb
