#pragma once
#include "layers/ham_cache.h"
#include "layers/ops/gated_delta.h"

namespace hebb {

/// What a HAM layer carries: the last raw projections, which both paths convolve, the delta rule's state and the list
/// of selected keys and values.
struct HamState final : LayerState {
  Buffer q_tail, k_tail, v_tail;  // [B, K-1, C]; empty without convolutions
  DeltaState delta;               // its convolutions are set for the time of a pass
  HamCache cache;
  HamState(DeltaState d, HamCache c) : delta(std::move(d)), cache(std::move(c)) {}
};

}  // namespace hebb
