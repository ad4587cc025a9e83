#include "layers/ops/product_key.h"

#include "kernels/product_key/product_key.h"
#include "layers/ops/host_values.h"
#include "layers/ops/slot_statistics.h"

namespace hebb {
namespace {

struct ProductKeyNode final : Node {
  Var q, keys, values, r;
  Tensor slots, weights;  // [N, H, k]

  void backward(Tape& tape) override {
    const Buffer d_weights = tape.scratch(weights.shape, weights.dtype, "slot weight gradients");
    const GradSlot d_values = tape.grad_slot(values);
    const Tensor flat_slots = slots.view({slots.size(0), slots.size(1) * slots.size(2)});
    run(tape.stream(), SlotReadBackward{.d_weights = d_weights,
                                        .d_values = d_values.tensor,
                                        .d_r = tape.grad(r),
                                        .slots = flat_slots,
                                        .weights = weights,
                                        .values = tape.matrix(values)});
    const GradSlot d_q = tape.grad_slot(q), d_keys = tape.grad_slot(keys);
    const Shape& k = tape.shape(keys);
    const Shape by_head{slots.size(0), slots.size(1), 2, k[3]};
    run(tape.workspace(), ProductKeyBackward{.d_q = d_q.tensor,
                                             .d_keys = d_keys.tensor,
                                             .d_weights = d_weights,
                                             .weights = weights,
                                             .slots = slots,
                                             .q = tape.value(q).view(by_head),
                                             .keys = tape.value(keys),
                                             .accumulate = d_q.accumulate});
  }
};

}  // namespace

Var product_key_read(Pass& pass, Var q, Var keys, Var values, const ProductKeyMemory& m, const std::string& name) {
  Tape& tape = pass.tape;
  const int64_t tokens = pass.tokens();
  const DType dtype = tape.dtype(q);
  ProductKeyNode node;
  node.q = q;
  node.keys = keys;
  node.values = values;
  node.r = tape.output({tokens, tape.shape(values)[1]}, dtype, "memory reading");
  node.slots = tape.saved({tokens, m.heads, m.top_k}, DType::i32, "slots");
  node.weights = tape.saved({tokens, m.heads, m.top_k}, sum_dtype(dtype), "slot weights");
  const Tensor q4 = tape.value(q).view({tokens, m.heads, 2, m.half_dim});
  if (take_forced(pass, node.slots, name + ".slots", "forced slot", m.subkeys * m.subkeys)) {
    run(tape.stream(), ProductKeyScore{.sums = node.weights, .slots = node.slots, .q = q4, .keys = tape.value(keys)});
  } else {
    run(tape.workspace(), ProductKeyTopK{.slots = node.slots, .sums = node.weights, .q = q4, .keys = tape.value(keys)});
  }
  if (pass.records()) {
    pass.inspector->records[name + ".slots"] =
        record_of(tape.stream(), node.slots, {pass.batch(), pass.length(), m.heads, m.top_k});
  }
  if (pass.measures()) {
    count_slots(tape.stream(), node.slots, static_cast<double>(m.subkeys * m.subkeys), (*pass.statistics)[name]);
  }
  run(tape.stream(), SoftmaxRows{node.weights, node.weights, m.top_k});
  run(tape.stream(),
      SlotRead{.r = tape.value(node.r), .slots = node.slots, .weights = node.weights, .values = tape.matrix(values)});
  return tape.record(std::move(node), &ProductKeyNode::r);
}

}  // namespace hebb
