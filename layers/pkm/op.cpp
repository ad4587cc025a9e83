#include "layers/pkm/op.h"

#include "kernels/product_key/product_key.h"
#include "layers/ops/host_values.h"
#include "layers/ops/slot_statistics.h"

namespace hebb {

Var product_key_read(Pass& pass, Var q, Var keys, Var values, const ProductKeyMemory& m, const std::string& name) {
  Tape& tape = pass.tape;
  const int64_t tokens = pass.tokens();
  const DType dtype = tape.dtype(q);
  const Shape q_shape{tokens, m.heads, 2, m.half_dim};
  const Var r = tape.output({tokens, tape.shape(values)[1]}, dtype, "memory reading");
  const Tensor slots = tape.saved({tokens, m.heads, m.top_k}, DType::i32, "slots"),
               weights = tape.saved(slots.shape, sum_dtype(dtype), "slot weights");
  const Tensor q4 = tape.value(q).view(q_shape);
  if (take_forced(pass, slots, name + ".slots", "forced slot", m.subkeys * m.subkeys)) {
    run(tape.stream(), ProductKeyScore{.sums = weights, .slots = slots, .q = q4, .keys = tape.value(keys)});
  } else {
    run(tape.workspace(), ProductKeyTopK{.slots = slots, .sums = weights, .q = q4, .keys = tape.value(keys)});
  }
  record(pass, name + ".slots", slots, {pass.batch(), pass.length(), m.heads, m.top_k});
  if (pass.measures()) {
    count_slots(tape.stream(), slots, static_cast<double>(m.subkeys * m.subkeys), (*pass.statistics)[name]);
  }
  run(tape.stream(), SoftmaxRows{weights, weights, m.top_k});
  run(tape.stream(), SlotRead{.r = tape.value(r), .slots = slots, .weights = weights, .values = tape.matrix(values)});
  return tape.record(r, [=](Tape& tape) {
    const Buffer d_weights = tape.scratch(weights.shape, weights.dtype, "slot weight gradients");
    const GradSlot d_values = tape.grad_slot(values);
    run(tape.stream(), SlotReadBackward{.d_weights = d_weights,
                                        .d_values = d_values.tensor,
                                        .d_r = tape.grad(r),
                                        .slots = slots.view({tokens, m.heads * m.top_k}),
                                        .weights = weights,
                                        .values = tape.matrix(values)});
    const GradSlot d_q = tape.grad_slot(q), d_keys = tape.grad_slot(keys);
    run(tape.workspace(), ProductKeyBackward{.d_q = d_q.tensor,
                                             .d_keys = d_keys.tensor,
                                             .d_weights = d_weights,
                                             .weights = weights,
                                             .slots = slots,
                                             .q = tape.value(q).view(q_shape),
                                             .keys = tape.value(keys),
                                             .accumulate = d_q.accumulate});
  });
}

}  // namespace hebb
