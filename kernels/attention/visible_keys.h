#pragma once
#include "core/kernel.h"

namespace hebb {

/// Which earlier tokens of its document a token sees, itself included: all of them, the `window` last
/// ones (window > 0), or its own block of `block` tokens and the blocks - 1 before it (block > 0)
/// (docs/layers/attention.md, Windows).
struct KeyRange {
  int64_t window = 0, block = 0, blocks = 0;

  bool operator==(const KeyRange&) const = default;
  constexpr bool full() const { return window == 0 && block == 0; }
  /// Largest number of tokens seen at once; 0 when there is no bound.
  constexpr int64_t size() const { return window > 0 ? window : block * blocks; }
  /// First document position that position p sees.
  constexpr int64_t first(int64_t p) const {
    const int64_t from = window > 0 ? p - window + 1 : block > 0 ? (p / block - blocks + 1) * block : 0;
    return from > 0 ? from : 0;
  }
};

/// lo, hi [B, T] i32: the keys lo <= j < hi that each token sees, when token t of a row is key
/// t + offset. doc_start [B, T] i32; a document that began before the row reaches back to key 0.
struct VisibleKeys {
  Tensor lo, hi, doc_start;
  KeyRange range;
  int64_t offset;
};
HEBB_KERNEL(VisibleKeys)

/// Where a bounded KeyRange keeps the last tokens of a document: `size` slots, of which those that the
/// newest token sees are one run, although their order is not that of the positions (softmax does not
/// mind). Window: position p in slot p mod window. Blocks: the newest block behind the others, which
/// fill the slots before it downwards in turn.
struct RingSlots {
  KeyRange range;

  /// Slot of position p when `newest` is the last position written.
  constexpr int64_t slot(int64_t p, int64_t newest) const {
    if (range.window > 0) { return p % range.window; }
    const int64_t block = p / range.block, older = range.blocks - 1;
    return (block == newest / range.block ? older : older - 1 - block % older) * range.block + p % range.block;
  }
  constexpr int64_t begin(int64_t newest) const {
    if (range.window > 0) { return 0; }
    const int64_t older = range.blocks - 1, block = newest / range.block;
    return (older - (block < older ? block : older)) * range.block;
  }
  constexpr int64_t end(int64_t newest) const {
    if (range.window > 0) { return newest + 1 < range.window ? newest + 1 : range.window; }
    return (range.blocks - 1) * range.block + newest % range.block + 1;
  }
};

/// One token a row: ring [B, size, C] takes x [B, 1, C] at its document position less `first`; where that begins a
/// block, the finished one first moves to its place.
struct RingAppend {
  Tensor ring, x, doc_start;
  RingSlots slots;
  int64_t first = 0;
};
HEBB_KERNEL(RingAppend)

/// lo, hi [B, 1] i32: the slots that the appended token sees.
struct RingKeys {
  Tensor lo, hi, doc_start;
  RingSlots slots;
};
HEBB_KERNEL(RingKeys)

/// line [B, size - 1 + T, C] = what the ring holds of the document that continues into the row, in
/// order, ending at index size - 2. Indices of tokens that do not exist are not written.
struct RingUnroll {
  Tensor line, ring, doc_start;
  RingSlots slots;
};
HEBB_KERNEL(RingUnroll)

/// ring = the tokens of `line` (see RingUnroll; the row's own from index size - 1) that a token after
/// the row could see.
struct RingStore {
  Tensor ring, line, doc_start;
  RingSlots slots;
};
HEBB_KERNEL(RingStore)

}  // namespace hebb
