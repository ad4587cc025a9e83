#include "layers/ops/linear.h"

#include "kernels/activation/activation.h"
#include "kernels/bias/bias.h"
#include "kernels/gemm/gemm.h"

namespace hebb {
namespace {

const Tensor& operand(const Tape& tape, Var weight, DType dtype) {
  return tape.dtype(weight) == dtype ? tape.value(weight) : tape.matrix(weight);
}

/// y = x weightᵀ.
void multiply(Tape& tape, const Tensor& y, const Tensor& x, Var weight) {
  const int64_t out = tape.shape(weight)[0], in = tape.shape(weight)[1];
  run(tape.stream(), Gemm{.c = y,
                          .a = x,
                          .b = operand(tape, weight, x.dtype),
                          .m = x.numel() / in,
                          .n = out,
                          .k = in,
                          .trans_b = true});
}

/// d_weight (+)= d_yᵀ x, if anybody wants it.
void multiply_for_weight(Tape& tape, Var weight, const Tensor& d_y, const Tensor& x) {
  const int64_t out = tape.shape(weight)[0], in = tape.shape(weight)[1];
  if (const GradSlot d = tape.grad_slot(weight)) {
    run(tape.stream(), Gemm{.c = d.tensor,
                            .a = d_y,
                            .b = x,
                            .m = out,
                            .n = in,
                            .k = x.numel() / in,
                            .trans_a = true,
                            .accumulate = d.accumulate});
  }
}

/// d_x (+)= d_y weight.
void multiply_for_input(Tape& tape, const GradSlot& d_x, const Tensor& d_y, Var weight) {
  const int64_t out = tape.shape(weight)[0], in = tape.shape(weight)[1];
  run(tape.stream(), Gemm{.c = d_x.tensor,
                          .a = d_y,
                          .b = operand(tape, weight, d_x.tensor.dtype),
                          .m = d_x.tensor.numel() / in,
                          .n = in,
                          .k = out,
                          .accumulate = d_x.accumulate});
}

}  // namespace

Var linear(Tape& tape, Var x, Var weight, Var bias, std::optional<DType> dtype) {
  const int64_t out = tape.shape(weight)[0], in = tape.shape(weight)[1], rows = tape.shape(x).numel() / in;
  HEBB_ASSERT(rows * in == tape.shape(x).numel());
  const Var y = tape.output({rows, out}, dtype.value_or(tape.dtype(x)), "linear");
  multiply(tape, tape.value(y), tape.value(x), weight);
  if (bias) { run(tape.stream(), AddBias{tape.value(y), tape.value(bias)}); }
  return tape.record(y, [=](Tape& tape) {
    Tensor d_y = tape.grad(y);
    if (const GradSlot d = tape.grad_slot(bias)) { run(tape.stream(), ColumnSums{d.tensor, d_y}); }
    Buffer rounded;  // operands have one type
    if (d_y.dtype != tape.dtype(x)) {
      rounded = tape.scratch(d_y.shape, tape.dtype(x), "rounded gradient");
      convert(tape.stream(), rounded, d_y);
      d_y = rounded;
    }
    multiply_for_weight(tape, weight, d_y, tape.value(x));
    if (const GradSlot d = tape.grad_slot(x)) { multiply_for_input(tape, d, d_y, weight); }
  });
}

Var swiglu_linear(Tape& tape, Var gate, Var up, Var weight) {
  const Var y = tape.output({tape.shape(gate)[0], tape.shape(weight)[0]}, tape.dtype(gate), "linear");
  {
    const Buffer act = tape.scratch(tape.shape(gate), tape.dtype(gate), "swiglu");
    run(tape.stream(), SwigluForward{act, tape.value(gate), tape.value(up)});
    multiply(tape, tape.value(y), act, weight);
  }
  return tape.record(y, [=](Tape& tape) {
    const Tensor d_y = tape.grad(y);
    if (tape.wants_grad(weight)) {
      const Buffer act = tape.scratch(tape.shape(gate), tape.dtype(gate), "swiglu again");
      run(tape.stream(), SwigluForward{act, tape.value(gate), tape.value(up)});
      multiply_for_weight(tape, weight, d_y, act);
    }
    const Buffer d_act = tape.scratch(tape.shape(gate), tape.dtype(gate), "swiglu gradient");
    multiply_for_input(tape, {.tensor = d_act, .accumulate = false}, d_y, weight);
    const GradSlot d_gate = tape.grad_slot(gate), d_up = tape.grad_slot(up);
    HEBB_ASSERT(d_gate && d_up && !d_gate.accumulate && !d_up.accumulate);
    run(tape.stream(), SwigluBackward{.d_gate = d_gate.tensor,
                                      .d_up = d_up.tensor,
                                      .d_y = d_act,
                                      .gate = tape.value(gate),
                                      .up = tape.value(up)});
  });
}

}  // namespace hebb
