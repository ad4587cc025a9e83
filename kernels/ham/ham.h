#pragma once
// What HAM adds to the gated delta rule and attention (docs/layers/ham.md): scores of tokens, the
// selection, and the packed list of selected keys and values.
#include "core/kernel.h"

namespace hebb {

/// score [N] = min or max over heads of 1 - <p, v> / (|p| |v| + 1e-6); p, v [N, H, dv].
/// Bound: memory, p and v once.
struct PredictionScore {
  Tensor score, p, v;
  bool takes_max;
};
HEBB_KERNEL(PredictionScore)

/// y [N, H, 2 dv + d] = (l2(p), l2(v), x) per head, l2(x) = x / sqrt(sum x^2 + 1e-6); p, v [N, H, dv], x [N, d].
struct RouterInput {
  Tensor y, p, v, x;
};
HEBB_KERNEL(RouterInput)

/// d_x [N, d] (overwritten or added to) = sum over heads of the last d channels of d_y [N, H, C].
struct RouterInputBackward {
  Tensor d_x, d_y;
  bool accumulate;
};
HEBB_KERNEL(RouterInputBackward)

/// y = x Phi(x), elementwise; d_x = d_y (Phi(x) + x phi(x)), overwritten or added to.
struct Gelu {
  Tensor y, x;
};
HEBB_KERNEL(Gelu)
struct GeluBackward {
  Tensor d_x, d_y, x;
  bool accumulate;
};
HEBB_KERNEL(GeluBackward)

/// own [N] = min or max over heads of sigmoid(logits [N, H]), winner [N] i32 the head (the first of equal ones);
/// score [N] = gamma own + (1 - gamma) previous, gamma = sigmoid(eda_logit [1]); without previous: own.
struct RouterScore {
  Tensor score, own, winner;
  Tensor logits, previous, eda_logit;
  bool takes_max;
};
HEBB_KERNEL(RouterScore)

/// From d_score [N]: d_logits [N, H] (only the winner gets some) and d_previous, overwritten or added to;
/// d_eda_logit +=. Each may be undefined. Serial: a few operations a token.
struct RouterScoreBackward {
  Tensor d_logits, d_previous, d_eda_logit;
  Tensor d_score, own, winner, previous, eda_logit;
  bool accumulate_logits, accumulate_previous;
};
HEBB_KERNEL(RouterScoreBackward)

enum class Selecting { threshold, all, none };

/// Which tokens enter the list of keys and values, and what every query sees of it.
/// slot, lo, hi [B, T] i32: place in the list (-1: not selected) and the slots lo <= j < hi of the own document up to
/// the token itself; selected [B] i32: tokens selected in the row. A token is selected where score [B, T] >= tau, tau =
/// range sigmoid(threshold [1]), or `tau` without a threshold; where forced [B, T] i32 is 1, if given.
/// held [B, 2] i32: rows have lists of their own; of those that continue a document it holds slots
/// held[b, 0] <= j < held[b, 1]. Undefined: one list for all rows, none of which continues. Serial: bound by latency.
struct SelectTokens {
  Tensor slot, lo, hi, selected;
  Tensor score, threshold, forced, held, doc_start;
  Selecting selecting;
  double range, tau;
};
HEBB_KERNEL(SelectTokens)

/// counter [2] i64 += (sum of selected [B] i32, tokens).
struct CountSelected {
  Tensor counter, selected;
  int64_t tokens;
};
HEBB_KERNEL(CountSelected)

/// The gradient of a threshold [1] (docs/layers/ham.md, Thresholds): -gain (mean over L layers of selected / tokens -
/// target), clipped to
/// +-clip; counters [L, 2] i64 as CountSelected leaves them. In double.
struct ThresholdGradient {
  Tensor gradient, counters;
  double target, gain, clip;
};
HEBB_KERNEL(ThresholdGradient)

/// list [L, S, C] at (row or 0, slot) = x [B, T, C], times factor [B, T] if defined, for selected tokens; L is B, or 1.
/// Bound: memory, 2 passes.
struct PackTokens {
  Tensor list, x, slot, factor;
};
HEBB_KERNEL(PackTokens)

/// The gradients of PackTokens into one list (L = 1): d_x (0 for tokens that are not selected) and d_factor [B, T],
/// overwritten or added to; each may be undefined. Bound: memory, 3 passes.
struct PackTokensBackward {
  Tensor d_x, d_factor;
  Tensor d_list, x, slot, factor;
  bool accumulate_x, accumulate_factor;
};
HEBB_KERNEL(PackTokensBackward)

}  // namespace hebb
