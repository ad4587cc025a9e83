#include "layers/ops/recurrence_input.h"

#include "kernels/short_conv/short_conv.h"

namespace hebb {
namespace {

Tensor value_or_none(Tape& tape, Var v) { return v ? tape.value(v) : Tensor{}; }

}  // namespace

PreparedInput prepare_input(Tape& tape, const RecurrenceInput& in, const Tensor& doc_start, const Tensor& previous,
                            const Tensor& into) {
  PreparedInput p;
  const Tensor input = tape.value(in.input);
  if (!in.weight && !in.silu && !in.normed && !into.defined()) {
    p.values = input.view(in.shape);
    return p;
  }
  if (!into.defined()) { p.memory = tape.scratch(in.matrix(), input.dtype, "recurrence inputs"); }
  const Tensor out = into.defined() ? into : p.memory.tensor();
  p.values = out.view(in.shape);
  if (in.normed) { p.scale = tape.scratch({in.tokens(), in.shape[2]}, sum_dtype(input.dtype), "l2 norm scale"); }
  run(tape.stream(),
      ShortConvForward{out.view(in.flat()), input.view(in.flat()), value_or_none(tape, in.weight),
                       value_or_none(tape, in.bias), previous, doc_start, in.silu, p.scale, in.shape[3]});
  return p;
}

void finish_input(Tape& tape, const RecurrenceInput& in, const Tensor& doc_start, const PreparedInput& prepared,
                  const Tensor& d_values) {
  Buffer partial;
  if (in.weight) {
    const int64_t taps = tape.shape(in.weight)[1];
    partial = tape.scratch({short_conv_blocks(in.shape[0], in.shape[1]), taps + 1, in.shape[2] * in.shape[3]},
                           sum_dtype(d_values.dtype), "convolution sums");
  }
  const GradSlot d_x = tape.grad_slot(in.input);
  run(tape.stream(), ShortConvBackward{d_x ? d_x.tensor.view(in.flat()) : Tensor{}, tape.grad_slot(in.weight).tensor,
                                       tape.grad_slot(in.bias).tensor, partial, d_values.view(in.flat()),
                                       tape.value(in.input).view(in.flat()), value_or_none(tape, in.weight),
                                       value_or_none(tape, in.bias), doc_start, in.silu, d_x.accumulate,
                                       prepared.values, prepared.scale, in.shape[3]});
}

}  // namespace hebb
