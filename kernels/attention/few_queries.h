#pragma once
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile.h"

namespace hebb::cpu::attention {

/// Each row by itself, in blocks of kFewKeys keys that threads share. Bound: reading k and v once a row.
template <class S>
void forward_few(const AttentionForward& a, const AttentionForwardScratch& scratch, const Heads<S>& heads);

}  // namespace hebb::cpu::attention
