#include "layers/ops/short_conv.h"

#include "kernels/short_conv/short_conv.h"

namespace hebb {
namespace {

struct ShortConvNode final : Node {
  Var x, weight, bias, y;
  Tensor doc_start;
  Shape shape;  // [B, T, C]
  bool silu;

  void backward(Tape& tape) override {
    Buffer partial;
    if (tape.wants_grad(weight) || tape.wants_grad(bias)) {
      partial = tape.scratch({short_conv_blocks(shape[0], shape[1]), tape.shape(weight)[1] + 1, shape[2]},
                             sum_dtype(tape.dtype(x)), "convolution sums");
    }
    const GradSlot d_x = tape.grad_slot(x);
    run(tape.stream(), ShortConvBackward{d_x ? d_x.tensor.view(shape) : Tensor{}, tape.grad_slot(weight).tensor,
                                         tape.grad_slot(bias).tensor, partial, tape.grad(y).view(shape),
                                         tape.value(x).view(shape), weight ? tape.value(weight) : Tensor{},
                                         bias ? tape.value(bias) : Tensor{}, doc_start, silu, d_x.accumulate});
  }
};

}  // namespace

Var short_conv(Pass& pass, Var x, Var weight, Var bias, bool silu, ShortConvState* state) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(weight || (!bias && state == nullptr));
  ShortConvNode node;
  node.x = x;
  node.weight = weight;
  node.bias = bias;
  node.doc_start = pass.rows.doc_start();
  node.shape = {pass.batch(), pass.length(), tape.shape(x).numel() / pass.tokens()};
  node.silu = silu;
  node.y = tape.output(tape.shape(x), tape.dtype(x), "convolution");
  const Tensor input = tape.value(x).view(node.shape),
               previous = state != nullptr ? state->previous.tensor() : Tensor{};
  run(tape.stream(),
      ShortConvForward{tape.value(node.y).view(node.shape), input, weight ? tape.value(weight) : Tensor{},
                       bias ? tape.value(bias) : Tensor{}, previous, node.doc_start, silu});
  if (state != nullptr) { run(tape.stream(), ShortConvShift{previous, input}); }
  const Var y = node.y;
  tape.record(std::move(node));
  return y;
}

}  // namespace hebb
