#include "layers/ops/attention.h"

#include "kernels/attention/attention.h"

namespace hebb {

KeyIntervals visible_keys(Pass& pass, const KeyRange& range, int64_t offset) {
  for (const SharedValues::Visible& made : pass.shared.visible) {
    if (made.range == range && made.offset == offset) { return made.keys; }
  }
  const Shape shape{pass.batch(), pass.length()};
  const KeyIntervals visible{pass.tape.output(shape, DType::i32, "first visible keys"),
                             pass.tape.output(shape, DType::i32, "last visible keys")};
  run(pass.stream(), VisibleKeys{.lo = pass.tape.value(visible.lo),
                                 .hi = pass.tape.value(visible.hi),
                                 .doc_start = pass.rows.doc_start(),
                                 .range = range,
                                 .offset = offset});
  pass.shared.visible.push_back({range, offset, visible});
  return visible;
}

Var attention(Tape& tape, Var q, Var k, Var v, const AttentionShape& shape, const KeyIntervals& visible, double scale,
              Var bias) {
  const Shape q_shape{shape.batch, shape.length, shape.heads, shape.head_dim},
      o_shape{shape.batch, shape.length, shape.heads, shape.value_head_dim},
      k_shape{shape.spaces, shape.keys, shape.kv_heads, shape.head_dim},
      v_shape{shape.spaces, shape.keys, shape.kv_heads, shape.value_head_dim},
      bias_shape{shape.spaces, shape.keys, shape.kv_heads}, lse_shape{shape.batch, shape.length, shape.heads};
  const DType dtype = tape.dtype(q);
  const Var o = tape.output({shape.batch * shape.length, shape.heads * shape.value_head_dim}, dtype, "attention");
  const Tensor lse = tape.recording() ? tape.saved(lse_shape, sum_dtype(dtype), "attention log-sum-exp") : Tensor{};
  run(tape.workspace(), AttentionForward{.o = tape.value(o).view(o_shape),
                                         .lse = lse,
                                         .q = tape.value(q).view(q_shape),
                                         .k = tape.value(k).view(k_shape),
                                         .v = tape.value(v).view(v_shape),
                                         .lo = tape.value(visible.lo),
                                         .hi = tape.value(visible.hi),
                                         .bias = bias ? tape.value(bias).view(bias_shape) : Tensor{},
                                         .scale = scale});
  return tape.record(o, [=](Tape& tape) {
    const GradSlot d_q = tape.grad_slot(q), d_k = tape.grad_slot(k), d_v = tape.grad_slot(v),
                   d_bias = tape.grad_slot(bias);
    run(tape.workspace(), AttentionBackward{.d_q = d_q.view(q_shape),
                                            .d_k = d_k.view(k_shape),
                                            .d_v = d_v.view(v_shape),
                                            .d_bias = d_bias.view(bias_shape),
                                            .d_o = tape.grad(o).view(o_shape),
                                            .q = tape.value(q).view(q_shape),
                                            .k = tape.value(k).view(k_shape),
                                            .v = tape.value(v).view(v_shape),
                                            .o = tape.value(o).view(o_shape),
                                            .lse = lse,
                                            .lo = tape.value(visible.lo),
                                            .hi = tape.value(visible.hi),
                                            .bias = bias ? tape.value(bias).view(bias_shape) : Tensor{},
                                            .scale = scale,
                                            .accumulate_q = d_q.accumulate,
                                            .accumulate_k = d_k.accumulate,
                                            .accumulate_v = d_v.accumulate,
                                            .accumulate_bias = d_bias.accumulate});
  });
}

}  // namespace hebb
