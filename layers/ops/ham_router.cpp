#include "layers/ops/ham_router.h"

#include "kernels/ham/ham.h"

namespace hebb {
namespace {

Tensor by_head(const Tensor& x, int64_t heads) { return x.view({x.size(0), heads, x.numel() / (x.size(0) * heads)}); }

struct RouterInputNode final : Node {
  Var x, y;
  int64_t heads;

  void backward(Tape& tape) override {
    if (const GradSlot d = tape.grad_slot(x)) {
      const Shape& shape = tape.shape(y);
      run(tape.stream(),
          RouterInputBackward{d.tensor, tape.grad(y).view({shape[0] / heads, heads, shape[1]}), d.accumulate});
    }
  }
};

struct GeluNode final : Node {
  Var x, y;

  void backward(Tape& tape) override {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(),
          GeluBackward{.d_x = d.tensor, .d_y = tape.grad(y), .x = tape.value(x), .accumulate = d.accumulate});
    }
  }
};

struct RouterScoreNode final : Node {
  Var logits, previous, eda_logit, score;
  Tensor own, winner;

  void backward(Tape& tape) override {
    const GradSlot d_logits = tape.grad_slot(logits), d_previous = tape.grad_slot(previous);
    run(tape.stream(), RouterScoreBackward{.d_logits = d_logits.tensor,
                                           .d_previous = d_previous.tensor,
                                           .d_eda_logit = tape.grad_slot(eda_logit).tensor,
                                           .d_score = tape.grad(score),
                                           .own = own,
                                           .winner = winner,
                                           .previous = tape.value_or_none(previous),
                                           .eda_logit = tape.value_or_none(eda_logit),
                                           .accumulate_logits = d_logits.accumulate,
                                           .accumulate_previous = d_previous.accumulate});
  }
};

}  // namespace

Var prediction_score(Tape& tape, const Tensor& prediction, const Tensor& value, int64_t heads, bool takes_max) {
  const Var score = tape.output({prediction.size(0)}, sum_dtype(prediction.dtype), "router score");
  run(tape.stream(), PredictionScore{.score = tape.value(score),
                                     .p = by_head(prediction, heads),
                                     .v = by_head(value, heads),
                                     .takes_max = takes_max});
  return score;
}

Var router_input(Tape& tape, const Tensor& prediction, const Tensor& value, Var x, int64_t heads) {
  const int64_t tokens = prediction.size(0), dv = prediction.size(1) / heads, width = 2 * dv + tape.shape(x)[1];
  RouterInputNode node;
  node.x = x;
  node.heads = heads;
  node.y = tape.output({tokens * heads, width}, tape.dtype(x), "router input");
  run(tape.stream(), RouterInput{.y = tape.value(node.y).view({tokens, heads, width}),
                                 .p = by_head(prediction, heads),
                                 .v = by_head(value, heads),
                                 .x = tape.value(x)});
  return tape.record(std::move(node), &RouterInputNode::y);
}

Var gelu(Tape& tape, Var x) {
  GeluNode node;
  node.x = x;
  node.y = tape.output(tape.shape(x), tape.dtype(x), "gelu");
  run(tape.stream(), Gelu{tape.value(node.y), tape.value(x)});
  return tape.record(std::move(node), &GeluNode::y);
}

Var router_score(Tape& tape, Var logits, int64_t tokens, Var previous, Var eda_logit, bool takes_max) {
  RouterScoreNode node;
  node.logits = logits;
  node.previous = previous;
  node.eda_logit = previous ? eda_logit : Var{};
  const DType dtype = sum_dtype(tape.dtype(logits));
  node.score = tape.output({tokens}, dtype, "router score");
  node.own = tape.saved({tokens}, dtype, "router score");
  node.winner = tape.saved({tokens}, DType::i32, "router head");
  run(tape.stream(), RouterScore{.score = tape.value(node.score),
                                 .own = node.own,
                                 .winner = node.winner,
                                 .logits = tape.value(logits),
                                 .previous = tape.value_or_none(previous),
                                 .eda_logit = tape.value_or_none(node.eda_logit),
                                 .takes_max = takes_max});
  return tape.record(std::move(node), &RouterScoreNode::score);
}

}  // namespace hebb
