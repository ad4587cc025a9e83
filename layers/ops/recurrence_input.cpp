#include "layers/ops/recurrence_input.h"

#include "kernels/short_conv/short_conv.h"

namespace hebb {

PreparedInput prepare_input(Tape& tape, const RecurrenceInput& in, const Tensor& doc_start, const Tensor& previous,
                            const Tensor& into) {
  PreparedInput p;
  const Tensor input = tape.value(in.x);
  if (!in.weight && !in.silu && !in.normed && !into.defined()) {
    p.values = input.view(in.shape);
    return p;
  }
  if (!into.defined()) { p.memory = tape.scratch(in.matrix(), input.dtype, "recurrence inputs"); }
  const Tensor out = into.defined() ? into : p.memory.tensor();
  p.values = out.view(in.shape);
  if (in.normed) { p.scale = tape.scratch({in.tokens(), in.shape[2]}, sum_dtype(input.dtype), "l2 norm scale"); }
  run(tape.stream(), ShortConvForward{.y = out.view(in.flat()),
                                      .x = input.view(in.flat()),
                                      .weight = tape.value_or_none(in.weight),
                                      .bias = tape.value_or_none(in.bias),
                                      .previous = previous,
                                      .doc_start = doc_start,
                                      .silu = in.silu,
                                      .scale = p.scale,
                                      .head_dim = in.shape[3]});
  return p;
}

void finish_input(Tape& tape, const RecurrenceInput& in, const Tensor& doc_start, const PreparedInput& prepared,
                  const Tensor& d_values) {
  const GradSlot d_x = tape.grad_slot(in.x);
  run(tape.workspace(), ShortConvBackward{.d_x = d_x.view(in.flat()),
                                          .d_weight = tape.grad_slot(in.weight).tensor,
                                          .d_bias = tape.grad_slot(in.bias).tensor,
                                          .d_y = d_values.view(in.flat()),
                                          .x = tape.value(in.x).view(in.flat()),
                                          .weight = tape.value_or_none(in.weight),
                                          .bias = tape.value_or_none(in.bias),
                                          .doc_start = doc_start,
                                          .silu = in.silu,
                                          .accumulate = d_x.accumulate,
                                          .n = prepared.values,
                                          .scale = prepared.scale,
                                          .head_dim = in.shape[3]});
}

}  // namespace hebb
