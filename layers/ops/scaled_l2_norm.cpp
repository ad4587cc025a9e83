#include "layers/ops/scaled_l2_norm.h"

#include "kernels/scaled_l2_norm/scaled_l2_norm.h"

namespace hebb {
namespace {

struct ScaledL2NormNode final : Node {
  Var x, scale, y;
  Shape shape;  // [N, H, D]

  void backward(Tape& tape) override {
    const GradSlot d_x = tape.grad_slot(x), d_scale = tape.grad_slot(scale);
    run(tape.workspace(), ScaledL2NormBackward{.d_x = d_x ? d_x.tensor.view(shape) : Tensor{},
                                               .d_scale = d_scale.tensor,
                                               .d_y = tape.grad(y).view(shape),
                                               .x = tape.value(x).view(shape),
                                               .scale = tape.value(scale),
                                               .accumulate = d_x.accumulate});
  }
};

}  // namespace

Var scaled_l2_norm(Tape& tape, Var x, int64_t head_dim, Var scale) {
  const int64_t heads = tape.shape(scale).numel();
  ScaledL2NormNode node;
  node.x = x;
  node.scale = scale;
  node.shape = {tape.shape(x).numel() / (heads * head_dim), heads, head_dim};
  node.y = tape.output(tape.shape(x), tape.dtype(x), "l2 norm");
  run(tape.stream(),
      ScaledL2NormForward{tape.value(node.y).view(node.shape), tape.value(x).view(node.shape), tape.value(scale)});
  return tape.record(std::move(node), &ScaledL2NormNode::y);
}

}  // namespace hebb
