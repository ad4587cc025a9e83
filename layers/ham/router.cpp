#include "layers/ham/router.h"

#include "kernels/ham/ham.h"

namespace hebb {
namespace {

Tensor by_head(const Tensor& x, int64_t heads) { return x.view({x.size(0), heads, x.numel() / (x.size(0) * heads)}); }

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
  const Shape shape{tokens, heads, width};
  const Var y = tape.output({tokens * heads, width}, tape.dtype(x), "router input");
  run(tape.stream(), RouterInput{.y = tape.value(y).view(shape),
                                 .p = by_head(prediction, heads),
                                 .v = by_head(value, heads),
                                 .x = tape.value(x)});
  return tape.record(y, [=](Tape& tape) {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(), RouterInputBackward{d.tensor, tape.grad(y).view(shape), d.accumulate});
    }
  });
}

Var gelu(Tape& tape, Var x) {
  const Var y = tape.output(tape.shape(x), tape.dtype(x), "gelu");
  run(tape.stream(), Gelu{tape.value(y), tape.value(x)});
  return tape.record(y, [=](Tape& tape) {
    if (const GradSlot d = tape.grad_slot(x)) {
      run(tape.stream(),
          GeluBackward{.d_x = d.tensor, .d_y = tape.grad(y), .x = tape.value(x), .accumulate = d.accumulate});
    }
  });
}

Var router_score(Tape& tape, Var logits, int64_t tokens, Var previous, Var eda_logit, bool takes_max) {
  if (!previous) { eda_logit = {}; }
  const DType dtype = sum_dtype(tape.dtype(logits));
  const Var score = tape.output({tokens}, dtype, "router score");
  const Tensor own = tape.saved({tokens}, dtype, "router score"),
               winner = tape.saved({tokens}, DType::i32, "router head");
  run(tape.stream(), RouterScore{.score = tape.value(score),
                                 .own = own,
                                 .winner = winner,
                                 .logits = tape.value(logits),
                                 .previous = tape.value_or_none(previous),
                                 .eda_logit = tape.value_or_none(eda_logit),
                                 .takes_max = takes_max});
  return tape.record(score, [=](Tape& tape) {
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
  });
}

}  // namespace hebb
