#pragma once
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile.h"

namespace hebb::cpu::attention {

/// With fewer stacked rows than this in a key space (decoding) a tile would be mostly empty: each row
/// then goes over the keys by itself, in blocks of kFewKeys keys that threads share.
inline constexpr int64_t kFewRows = 4;
inline constexpr int64_t kFewKeys = 256;

/// Bound: reading k and v once a row.
template <class S>
void forward_few(const AttentionForward& a, const AttentionForwardScratch& scratch, const Heads<S>& heads);

}  // namespace hebb::cpu::attention
