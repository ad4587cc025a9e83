#pragma once
#include "core/kernel.h"

namespace hebb {

// Addressing of sparse delta memory (docs/layers/sdm.md, Selection): N tokens, H heads, n sub-keys per codebook,
// k slots per head and token; slot = i1 n + i2.

/// What turns the k selected scores s into weights: softmax of scale s, s / (|s| + 1e-12), or s itself.
enum class SlotActivation { softmax, l2, none };

/// slots [N, H, k] i32, ascending: the k best pairs of scores[0, i1] + scores[1, i2] in two stages, ties to
/// the lower index. scores [N, H, 2, n]. Bound: compute, about n + k log k comparisons per half.
struct SlotSelect {
  Tensor slots, scores;
};
HEBB_KERNEL(SlotSelect)

/// weights [N, H, k] = activation of the scores of the given slots.
struct SlotWeights {
  Tensor weights, slots, scores;
  SlotActivation activation;
  double scale;
};
HEBB_KERNEL(SlotWeights)

/// d_scores [N, H, 2, n], overwritten or, with `accumulate`, added to, from d_weights [N, H, k]; zero
/// where no pair was selected. weights: of the forward pass.
struct SlotWeightsBackward {
  Tensor d_scores, d_weights, weights, slots, scores;
  SlotActivation activation;
  double scale;
  bool accumulate;
};
HEBB_KERNEL(SlotWeightsBackward)

}  // namespace hebb
