#include "layers/lact/op.h"

#include <algorithm>

namespace hebb {
namespace {

struct LactNode final : Node {
  LactInputs in;
  LactShape shape;
  LactRule rule;
  Var y;
  Tensor doc_start;
  int64_t batch, length;
  bool updates;  // whether a document has a second chunk

  Shape tokens(int64_t channels) const { return {batch, length, shape.heads, channels}; }
  Tensor mix(const Tensor& t) const { return t.defined() ? t.view({batch, length, shape.heads}) : t; }

  template <class Args> void set_inputs(Tape& tape, Args& args) const {
    args.q = tape.value(in.q).view(tokens(shape.dim));
    args.k = tape.value(in.k).view(tokens(shape.dim));
    args.v = tape.value(in.v).view(tokens(shape.dim));
    args.rates = tape.value(in.rates).view(tokens(3));
    args.mix = in.mix ? mix(tape.value(in.mix)) : Tensor{};
    args.w0 = tape.value(in.w0);
    args.w1 = tape.value(in.w1);
    args.w2 = tape.value(in.w2);
    args.doc_start = doc_start;
    args.rule = rule;
  }

  void backward(Tape& tape) override {
    LactBackward args{};
    set_inputs(tape, args);
    const GradSlot d_q = tape.grad_slot(in.q);
    args.d_q = d_q.view(tokens(shape.dim));
    args.accumulate_q = d_q.accumulate;
    if (updates) { set_update_slots(tape, args); }
    // The initial weights may have gradients of their own or of the low-rank factors: the kernel adds.
    args.d_w0 = added_to(tape, in.w0);
    args.d_w1 = added_to(tape, in.w1);
    args.d_w2 = added_to(tape, in.w2);
    args.d_y = tape.grad(y).view(tokens(shape.dim));
    run(tape.workspace(), args);
  }

 private:
  /// The loss reaches keys, values, rates and momentum through updates alone.
  void set_update_slots(Tape& tape, LactBackward& args) const {
    const GradSlot d_k = tape.grad_slot(in.k), d_v = tape.grad_slot(in.v), d_rates = tape.grad_slot(in.rates),
                   d_mix = tape.grad_slot(in.mix);
    args.d_k = d_k.view(tokens(shape.dim));
    args.d_v = d_v.view(tokens(shape.dim));
    args.d_rates = d_rates.view(tokens(3));
    args.d_mix = mix(d_mix.tensor);
    args.accumulate_k = d_k.accumulate;
    args.accumulate_v = d_v.accumulate;
    args.accumulate_rates = d_rates.accumulate;
    args.accumulate_mix = d_mix.accumulate;
  }

  static Tensor added_to(Tape& tape, Var v) {
    const GradSlot slot = tape.grad_slot(v);
    if (slot && !slot.accumulate) { fill_zero(tape.stream(), slot.tensor); }
    return slot.tensor;
  }
};

}  // namespace

LactState::LactState(Arena& arena, int64_t rows, const LactShape& shape, DType dtype)
    : weights(arena, {rows, shape.heads, shape.weights()}, dtype, "fast weights"),
      momentum(arena, {rows, shape.heads, shape.weights()}, dtype, "fast weight momentum"),
      sums(arena, {rows, shape.heads, shape.weights()}, dtype, "fast weight sums"),
      mix_sums(arena, {rows, shape.heads}, dtype, "momentum sums") {}

Var lact_memory(Pass& pass, const LactInputs& in, const LactShape& shape, const LactRule& rule, LactState* state) {
  Tape& tape = pass.tape;
  HEBB_ASSERT(!(state != nullptr && tape.recording()));
  LactNode node;
  node.in = in;
  node.shape = shape;
  node.rule = rule;
  node.doc_start = pass.rows.doc_start();
  node.batch = pass.batch();
  node.length = pass.length();
  node.updates = std::any_of(pass.rows.spans().begin(), pass.rows.spans().end(),
                             [&](const DocumentSpan& span) { return span.length > rule.chunk; });
  const DType dtype = tape.dtype(in.q);
  node.y = tape.output({pass.tokens(), shape.heads * shape.dim}, dtype, "fast weight readings");
  LactForward args{};
  node.set_inputs(tape, args);
  args.y = tape.value(node.y).view(node.tokens(shape.dim));
  if (state != nullptr) {
    args.weights = state->weights;
    args.momentum = state->momentum;
    args.sums = state->sums;
    args.mix_sums = state->mix_sums;
  }
  run(tape.workspace(), args);
  return tape.record(std::move(node), &LactNode::y);
}

}  // namespace hebb
