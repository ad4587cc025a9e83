#include "layers/ops/product_key.h"

#include <fmt/core.h>

#include "kernels/product_key/product_key.h"
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

/// Forced slots [B, T, H, k] to the device.
void upload_forced(Pass& pass, const Tensor& slots, const Inspector::Record& forced, const std::string& name,
                   int64_t limit) {
  if (static_cast<int64_t>(forced.integers.size()) != slots.numel()) {
    throw DataError(name, "forced decisions", fmt::format("{:d} integers", forced.integers.size()),
                    std::to_string(slots.numel()));
  }
  std::vector<int32_t> narrow;
  for (const int64_t v : forced.integers) {
    if (v < 0 || v >= limit) {
      throw DataError(name, "forced slot", std::to_string(v), fmt::format("0 to {:d}", limit - 1));
    }
    narrow.push_back(static_cast<int32_t>(v));
  }
  copy_to_device(pass.stream(), slots, narrow.data());
}

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
  Inspector* inspector = pass.inspector;
  const Inspector::Record* forced = inspector != nullptr ? inspector->force(name + ".slots") : nullptr;
  if (forced != nullptr) {
    upload_forced(pass, node.slots, *forced, name + ".slots", m.subkeys * m.subkeys);
    run(tape.stream(), ProductKeyScore{.sums = node.weights, .slots = node.slots, .q = q4, .keys = tape.value(keys)});
  } else {
    run(tape.workspace(), ProductKeyTopK{.slots = node.slots, .sums = node.weights, .q = q4, .keys = tape.value(keys)});
  }
  if (inspector != nullptr && inspector->recording && !tape.recomputing()) {
    std::vector<int32_t> slots(static_cast<size_t>(node.slots.numel()));
    copy_to_host(tape.stream(), slots.data(), node.slots);
    inspector->records[name + ".slots"] = {
        {pass.batch(), pass.length(), m.heads, m.top_k}, {slots.begin(), slots.end()}, {}};
  }
  if (pass.statistics != nullptr && !tape.recomputing() && !tape.stream().counting()) {
    count_slots(tape.stream(), node.slots, static_cast<double>(m.subkeys * m.subkeys), (*pass.statistics)[name]);
  }
  run(tape.stream(), SoftmaxRows{node.weights, node.weights, m.top_k});
  run(tape.stream(),
      SlotRead{.r = tape.value(node.r), .slots = node.slots, .weights = node.weights, .values = tape.matrix(values)});
  return tape.record(std::move(node), &ProductKeyNode::r);
}

}  // namespace hebb
