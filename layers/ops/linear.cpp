#include "layers/ops/linear.h"

#include "kernels/bias/bias.h"
#include "kernels/gemm/gemm.h"

namespace hebb {
namespace {

const Tensor& operand(const Tape& tape, Var weight, Var x) {
  return tape.dtype(weight) == tape.dtype(x) ? tape.value(weight) : tape.matrix(weight);
}

struct LinearNode final : Node {
  Var x, weight, bias, y;  // [N, in] [out, in] [out] [N, out]
  int64_t rows, in, out;

  void backward(Tape& tape) override {
    Tensor d_y = tape.grad(y);
    if (const GradSlot d = tape.grad_slot(bias)) { run(tape.stream(), ColumnSums{d.tensor, d_y}); }
    Buffer rounded;  // operands have one type
    if (d_y.dtype != tape.dtype(x)) {
      rounded = tape.scratch(d_y.shape, tape.dtype(x), "rounded gradient");
      convert(tape.stream(), rounded, d_y);
      d_y = rounded;
    }
    if (const GradSlot d = tape.grad_slot(weight)) {
      run(tape.stream(), Gemm{.c = d.tensor,
                              .a = d_y,
                              .b = tape.value(x),
                              .m = out,
                              .n = in,
                              .k = rows,
                              .ldc = in,
                              .lda = out,
                              .ldb = in,
                              .trans_a = true,
                              .trans_b = false,
                              .accumulate = d.accumulate,
                              .alpha = 1.0});
    }
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(), Gemm{.c = d.tensor,
                              .a = d_y,
                              .b = operand(tape, weight, x),
                              .m = rows,
                              .n = in,
                              .k = out,
                              .ldc = in,
                              .lda = out,
                              .ldb = in,
                              .trans_a = false,
                              .trans_b = false,
                              .accumulate = d.accumulate,
                              .alpha = 1.0});
    }
  }
};

}  // namespace

Var linear(Tape& tape, Var x, Var weight, Var bias, std::optional<DType> dtype) {
  LinearNode node;
  node.out = tape.shape(weight)[0];
  node.in = tape.shape(weight)[1];
  node.rows = tape.shape(x).numel() / node.in;
  HEBB_ASSERT(node.rows * node.in == tape.shape(x).numel());
  node.x = x;
  node.weight = weight;
  node.bias = bias;
  node.y = tape.output({node.rows, node.out}, dtype.value_or(tape.dtype(x)), "linear");
  run(tape.stream(), Gemm{.c = tape.value(node.y),
                          .a = tape.value(x),
                          .b = operand(tape, weight, x),
                          .m = node.rows,
                          .n = node.out,
                          .k = node.in,
                          .ldc = node.out,
                          .lda = node.in,
                          .ldb = node.in,
                          .trans_a = false,
                          .trans_b = true,
                          .accumulate = false,
                          .alpha = 1.0});
  if (bias) { run(tape.stream(), AddBias{tape.value(node.y), tape.value(bias)}); }
  const Var y = node.y;
  tape.record(std::move(node));
  return y;
}

}  // namespace hebb
