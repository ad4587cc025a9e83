#include "layers/ops/head_norm.h"

#include "layers/ops/convert.h"

namespace hebb {
namespace {

struct L2NormNode final : Node {
  Var x, n;
  Tensor scale;
  int64_t head_dim;

  void backward(Tape& tape) override {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(), L2NormBackward{.d_x = d.tensor,
                                        .d_n = tape.grad(n),
                                        .n = tape.value(n),
                                        .scale = scale,
                                        .head_dim = head_dim,
                                        .accumulate = d.accumulate});
    }
  }
};

struct GatedNormNode final : Node {
  Var o, z, weight, y;
  int64_t head_dim;
  double eps;
  HeadGate gate;
  bool gate_first;

  void backward(Tape& tape) override {
    const GradSlot d_o = tape.grad_slot(o), d_z = tape.grad_slot(z);
    run(tape.workspace(), GatedNormBackward{.d_o = d_o.tensor,
                                            .d_z = d_z.tensor,
                                            .d_weight = tape.grad_slot(weight).tensor,
                                            .d_y = tape.grad(y),
                                            .o = tape.value(o),
                                            .z = tape.value_or_none(z),
                                            .weight = tape.value_or_none(weight),
                                            .head_dim = head_dim,
                                            .eps = eps,
                                            .gate = gate,
                                            .accumulate_o = d_o.accumulate,
                                            .accumulate_z = d_z.accumulate,
                                            .gate_first = gate_first});
  }
};

}  // namespace

Var l2_norm(Tape& tape, Var x, int64_t head_dim) {
  const int64_t tokens = tape.shape(x)[0];
  L2NormNode node;
  node.x = x;
  node.head_dim = head_dim;
  node.n = tape.output(tape.shape(x), tape.dtype(x), "l2 norm");
  node.scale =
      tape.saved({tokens, tape.shape(x).numel() / tokens / head_dim}, sum_dtype(tape.dtype(x)), "l2 norm scale");
  run(tape.stream(),
      L2NormForward{.n = tape.value(node.n), .scale = node.scale, .x = tape.value(x), .head_dim = head_dim});
  return tape.record(std::move(node), &L2NormNode::n);
}

Var gated_norm(Tape& tape, Var o, const GatedNorm& options) {
  const auto& [z, weight, head_dim, eps, gate, gate_first, dtype] = options;
  HEBB_ASSERT(static_cast<bool>(z) == (gate != HeadGate::none));
  const DType type = dtype.value_or(tape.dtype(o));
  if (!z && !weight) { return convert(tape, o, type); }
  HEBB_ASSERT(!z || tape.dtype(z) == type);
  GatedNormNode node;
  node.o = o;
  node.z = z;
  node.weight = weight;
  node.head_dim = head_dim;
  node.eps = eps;
  node.gate = gate;
  node.gate_first = gate_first;
  node.y = tape.output(tape.shape(o), type, "gated norm");
  run(tape.stream(), GatedNormForward{.y = tape.value(node.y),
                                      .o = tape.value(o),
                                      .z = tape.value_or_none(z),
                                      .weight = tape.value_or_none(weight),
                                      .head_dim = head_dim,
                                      .eps = eps,
                                      .gate = gate,
                                      .gate_first = gate_first});
  return tape.record(std::move(node), &GatedNormNode::y);
}

}  // namespace hebb
