#pragma once
#include "core/tape.h"

namespace hebb {

/// score [N] = min or max over heads of 1 - cos(prediction, value); both [N, heads dv]. No gradient.
/// Source: docs/layers/ham.md, Score.
Var prediction_score(Tape& tape, const Tensor& prediction, const Tensor& value, int64_t heads, bool takes_max);

/// [N heads, 2 dv + d] = (l2(prediction), l2(value), x) per head; prediction, value [N, heads dv] as in
/// prediction_score, x [N, d]. Gradients flow into x alone. Source: docs/layers/ham.md, Score.
Var router_input(Tape& tape, const Tensor& prediction, const Tensor& value, Var x, int64_t heads);

/// x Phi(x), Phi the normal distribution function; elementwise.
Var gelu(Tape& tape, Var x);

/// score [N] = min or max over heads of sigmoid(logits), averaged with the score `previous` [N] of the layer before
/// where that is given: gamma own + (1 - gamma) previous, gamma = sigmoid(eda_logit [1]).
/// logits: heads of a token side by side, N of them. Source: docs/layers/ham.md, Score and Gradients.
Var router_score(Tape& tape, Var logits, int64_t tokens, Var previous, Var eda_logit, bool takes_max);

}  // namespace hebb
