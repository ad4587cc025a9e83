#pragma once
#include <map>
#include <string>

#include "core/tensor.h"

namespace hebb {

struct Stream;

/// Chosen slots of every token and head with their weights, [N, H, k] both.
struct SlotUse {
  Tensor slots, weights;
};

/// Statistics of sparse delta memory over the tokens of one pass (docs/layers/sdm.md, Statistics):
/// forget_* and input_* (min, mean, max of alpha = exp(g) and beta); per side (read, write) unique_ (share of
/// the heads' slots used at least once), entropy_ (of the summed weights, over ln of the number of slots),
/// effective_ (exp(entropy)/k per token and head: mean, and _q10, _median, _q90), cumulative_..._M (mean mass
/// of the M largest weights, M = 1, 4, 16, ... up to k). Weights count by magnitude. g, beta [N, H].
void sparse_delta_statistics(Stream& stream, std::map<std::string, double>& out, int64_t slots_per_head,
                             const SlotUse& write, const SlotUse& read, const Tensor& g, const Tensor& beta);

}  // namespace hebb
