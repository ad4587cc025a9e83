#pragma once
#include <cstdint>
#include <span>

#include "core/random.h"

namespace hebb {

struct Sampling {
  double temperature = 1.0;  // 0 = greedy
  int64_t top_k = 0;         // 0 = all
  double top_p = 1.0;
};

/// Picks a token: greedy takes the largest logit (ties: lowest id). Else softmax(logits / temperature),
/// cut to the top_k most likely, then to the smallest set of them with probability >= top_p (ties:
/// lowest id first), and one uniform() of `rng` against the cumulative sum in id order (docs/verbs/train.md).
int32_t sample_token(std::span<const double> logits, const Sampling& sampling, Rng& rng);

}  // namespace hebb
