#include "layers/ops/attention.h"

#include <fmt/core.h>

#include "kernels/attention/attention.h"

namespace hebb {
namespace {

struct AttentionNode final : Node {
  Var q, k, v, bias, lo, hi, o;
  Tensor lse;
  AttentionShape shape;
  double scale;

  Shape queries(int64_t channels) const { return {shape.batch, shape.length, shape.heads, channels}; }
  Shape keys(int64_t channels) const { return {shape.spaces, shape.keys, shape.kv_heads, channels}; }
  Shape biases() const { return {shape.spaces, shape.keys, shape.kv_heads}; }

  void backward(Tape& tape) override {
    const auto shaped = [](const GradSlot& slot, const Shape& s) { return slot ? slot.tensor.view(s) : Tensor{}; };
    const GradSlot d_q = tape.grad_slot(q), d_k = tape.grad_slot(k), d_v = tape.grad_slot(v),
                   d_bias = tape.grad_slot(bias);
    const Shape q_shape = queries(shape.head_dim), o_shape = queries(shape.value_head_dim);
    const Shape k_shape = keys(shape.head_dim), v_shape = keys(shape.value_head_dim);
    run(tape.workspace(), AttentionBackward{.d_q = shaped(d_q, q_shape),
                                            .d_k = shaped(d_k, k_shape),
                                            .d_v = shaped(d_v, v_shape),
                                            .d_bias = shaped(d_bias, biases()),
                                            .d_o = tape.grad(o).view(o_shape),
                                            .q = tape.value(q).view(q_shape),
                                            .k = tape.value(k).view(k_shape),
                                            .v = tape.value(v).view(v_shape),
                                            .o = tape.value(o).view(o_shape),
                                            .lse = lse,
                                            .lo = tape.value(lo),
                                            .hi = tape.value(hi),
                                            .bias = bias ? tape.value(bias).view(biases()) : Tensor{},
                                            .scale = scale,
                                            .accumulate_q = d_q.accumulate,
                                            .accumulate_k = d_k.accumulate,
                                            .accumulate_v = d_v.accumulate,
                                            .accumulate_bias = d_bias.accumulate});
  }
};

}  // namespace

KeyIntervals visible_keys(Pass& pass, const KeyRange& range, int64_t offset) {
  const std::string key = fmt::format("visible/{:d}/{:d}/{:d}/{:d}", range.window, range.block, range.blocks, offset);
  const auto made = pass.shared.find(key + "/lo");
  if (made != pass.shared.end()) { return {made->second, pass.shared.at(key + "/hi")}; }
  const Shape shape{pass.batch(), pass.length()};
  const KeyIntervals visible{pass.tape.output(shape, DType::i32, "first visible keys"),
                             pass.tape.output(shape, DType::i32, "last visible keys")};
  run(pass.stream(), VisibleKeys{.lo = pass.tape.value(visible.lo),
                                 .hi = pass.tape.value(visible.hi),
                                 .doc_start = pass.rows.doc_start(),
                                 .range = range,
                                 .offset = offset});
  pass.shared[key + "/lo"] = visible.lo;
  pass.shared[key + "/hi"] = visible.hi;
  return visible;
}

Var attention(Tape& tape, Var q, Var k, Var v, const AttentionShape& shape, const KeyIntervals& visible, double scale,
              Var bias) {
  AttentionNode node;
  node.q = q;
  node.k = k;
  node.v = v;
  node.bias = bias;
  node.lo = visible.lo;
  node.hi = visible.hi;
  node.shape = shape;
  node.scale = scale;
  const DType dtype = tape.dtype(q);
  const Shape q_shape = node.queries(shape.head_dim), o_shape = node.queries(shape.value_head_dim);
  const Shape k_shape = node.keys(shape.head_dim), v_shape = node.keys(shape.value_head_dim);
  node.o = tape.output({shape.batch * shape.length, shape.heads * shape.value_head_dim}, dtype, "attention");
  node.lse = tape.recording()
                 ? tape.saved({shape.batch, shape.length, shape.heads}, sum_dtype(dtype), "attention log-sum-exp")
                 : Tensor{};
  run(tape.workspace(), AttentionForward{.o = tape.value(node.o).view(o_shape),
                                         .lse = node.lse,
                                         .q = tape.value(q).view(q_shape),
                                         .k = tape.value(k).view(k_shape),
                                         .v = tape.value(v).view(v_shape),
                                         .lo = tape.value(visible.lo),
                                         .hi = tape.value(visible.hi),
                                         .bias = bias ? tape.value(bias).view(node.biases()) : Tensor{},
                                         .scale = scale});
  return tape.record(std::move(node), &AttentionNode::o);
}

}  // namespace hebb
