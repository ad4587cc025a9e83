#include "layers/ops/token_shift.h"

#include <cmath>

#include "kernels/token_shift/token_shift.h"

namespace hebb {
namespace {

struct TokenShiftNode final : Node {
  Var x, mu, y;
  Tensor doc_start;
  Shape shape;  // [B, T, C]
  bool zero_start;

  void backward(Tape& tape) override {
    const GradSlot d_x = tape.grad_slot(x), d_mu = tape.grad_slot(mu);
    run(tape.workspace(), TokenShiftBackward{.d_x = d_x.tensor,
                                             .d_mu = d_mu.tensor,
                                             .d_y = tape.grad(y).view(shape),
                                             .x = tape.value(x).view(shape),
                                             .mu = tape.value(mu),
                                             .doc_start = doc_start,
                                             .zero_start = zero_start,
                                             .accumulate = d_x.accumulate});
  }
};

}  // namespace

Var token_shift(Pass& pass, Var x, Var mu, bool zero_start, TokenShiftState* state) {
  Tape& tape = pass.tape;
  const int64_t channels = tape.shape(mu).numel();
  TokenShiftNode node;
  node.x = x;
  node.mu = mu;
  node.doc_start = pass.rows.doc_start();
  node.shape = {pass.batch(), pass.length(), channels};
  node.zero_start = zero_start;
  node.y = tape.output({pass.tokens(), channels}, tape.dtype(x), "token shift");
  run(tape.stream(), TokenShiftForward{.y = tape.value(node.y),
                                       .x = tape.value(x).view(node.shape),
                                       .mu = tape.value(mu),
                                       .previous = state != nullptr ? state->previous.tensor() : Tensor{},
                                       .doc_start = node.doc_start,
                                       .zero_start = zero_start});
  if (state != nullptr) {
    for (int64_t b = 0; b < pass.batch(); ++b) {
      copy(tape.stream(), state->previous.tensor().slice(b * channels, {channels}),
           tape.value(x).slice(((b + 1) * pass.length() - 1) * channels, {channels}));
    }
  }
  return tape.record(std::move(node), &TokenShiftNode::y);
}

Init token_shift_init(double power) {
  return [power](Rng&, float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(1.0 - std::pow(static_cast<double>(i) / static_cast<double>(count), power));
    }
  };
}

}  // namespace hebb
