#include "layers/ops/pair_shift.h"

#include "kernels/pair_shift/pair_shift.h"

namespace hebb {
namespace {

struct PairShiftNode final : Node {
  Var k, v, shift, k_out, v_out;
  Tensor doc_start;
  Shape keys, values;  // [B, T, C], [B, T, Cv]

  void backward(Tape& tape) override {
    const GradSlot d_k = tape.grad_slot(k), d_v = tape.grad_slot(v), d_shift = tape.grad_slot(shift);
    run(tape.workspace(), PairShiftBackward{.d_k = d_k.tensor,
                                            .d_v = d_v.tensor,
                                            .d_shift = d_shift.tensor,
                                            .d_k_out = tape.grad(k_out).view(keys),
                                            .d_v_out = tape.grad(v_out).view(values),
                                            .v = tape.value(v).view(values),
                                            .shift = tape.value(shift),
                                            .doc_start = doc_start,
                                            .accumulate_k = d_k.accumulate,
                                            .accumulate_v = d_v.accumulate});
  }
};

}  // namespace

KeysAndValues pair_shift(Pass& pass, Var k, Var v, Var shift, PairShiftState* state) {
  Tape& tape = pass.tape;
  const int64_t batch = pass.batch(), length = pass.length();
  PairShiftNode node;
  node.k = k;
  node.v = v;
  node.shift = shift;
  node.doc_start = pass.rows.doc_start();
  node.keys = {batch, length, tape.shape(k).numel() / pass.tokens()};
  node.values = {batch, length, tape.shape(v).numel() / pass.tokens()};
  node.k_out = tape.output(tape.shape(k), tape.dtype(k), "shifted keys");
  node.v_out = tape.output(tape.shape(v), tape.dtype(v), "mixed values");
  const Tensor none;
  run(tape.stream(), PairShiftForward{.k_out = tape.value(node.k_out).view(node.keys),
                                      .v_out = tape.value(node.v_out).view(node.values),
                                      .k = tape.value(k).view(node.keys),
                                      .v = tape.value(v).view(node.values),
                                      .shift = tape.value(shift),
                                      .previous_k = state != nullptr ? state->k.tensor() : none,
                                      .previous_v = state != nullptr ? state->v.tensor() : none,
                                      .doc_start = node.doc_start});
  for (int64_t b = 0; state != nullptr && b < batch; ++b) {
    const int64_t last = (b + 1) * length - 1, keys = node.keys[2], values = node.values[2];
    copy(tape.stream(), state->k.tensor().slice(b * keys, {keys}), tape.value(k).slice(last * keys, {keys}));
    copy(tape.stream(), state->v.tensor().slice(b * values, {values}), tape.value(v).slice(last * values, {values}));
  }
  const KeysAndValues out{node.k_out, node.v_out};
  tape.record(std::move(node));
  return out;
}

}  // namespace hebb
