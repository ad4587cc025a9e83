#pragma once
#include <algorithm>

#include "kernels/lact/lact.h"

namespace hebb {

struct LactForwardScratch {
  Tensor memory;  // [slots, elements]: on a GPU one slot a row and head, of LactLayout::total; else one a thread
};

struct LactBackwardScratch {
  Tensor sums;    // [B, F, 3 h D]: gradients of initial weights, by row
  Tensor memory;  // as above
};

/// A GPU's scratch of `lact` for one row and head: where its parts begin, in elements of its type, of 4 bytes or more.
/// Every update of a row has a slot: the chunk behind it begins in tokens [(slot + base) C, (slot + base + 1) C), which
/// hold one such token at most.
struct LactLayout {
  static constexpr int64_t kPanel = 32;
  int64_t base, slots;     // a row's first chunks end within it, unless something is carried: then base is 0
  int64_t keep;            // momenta
  int64_t window, panels;  // tokens of a chunk within a row; panels of kPanel hidden channels
  int64_t version;         // [T] i32, of each token: slot, -1: initial weights, -2: carried ones
  int64_t begin, end;      // [slots] i32: tokens that a slot's weights serve; -1: none
  int64_t mixed;           // [slots + 1]: sums of sigmoid(mix) of the chunks before updates, and of the one in progress
  int64_t weights;         // [slots, 3 h D], behind the updates
  int64_t momenta;         // [keep, 3 h D]
  int64_t hidden;          // [3, T, h] or [6, window, h]
  int64_t shares;          // [window, panels, 3]
  int64_t d_weights;       // [slots, 3 h D]
  int64_t d_momentum, d_step, d_decay;                     // [3 h D] [3 h D] [1]
  int64_t lengths;                                         // [3], of what Muon starts from
  int64_t iterates;                                        // [2 or 6, 3, h D]
  int64_t squares, polynomials, d_squares, d_polynomials;  // [3, n, n], n = min(h, D)
  int64_t d_iterates;                                      // [2, 3, h D]
  int64_t total = 0;

  LactLayout(int64_t length, const LactRule& rule, int64_t dim, int64_t fast, bool carries, bool backward)
      : base(carries ? 0 : 1),
        slots((length - 1) / rule.chunk + 1 - base),
        keep(backward ? slots : 2),
        window(std::min(rule.chunk, length)),
        panels((fast + kPanel - 1) / kPanel) {
    const int64_t all = 3 * dim * fast, square = std::min(dim, fast) * std::min(dim, fast);
    const int64_t muon = rule.muon ? 1 : 0, back = backward ? 1 : 0;
    version = take(length);
    begin = take(slots);
    end = take(slots);
    mixed = take(slots + 1);
    weights = take(slots * all);
    momenta = take(keep * all);
    hidden = take(std::max((backward ? 3 : 1) * length, (backward ? 6 : 3) * window) * fast);
    shares = take(back * window * panels * 3);
    d_weights = take(back * slots * all);
    d_momentum = take(back * all);
    d_step = take(back * all);
    d_decay = take(back);
    lengths = take(muon * 3);
    iterates = take(muon * (backward ? 6 : 2) * all);
    squares = take(muon * 3 * square);
    polynomials = take(muon * 3 * square);
    d_squares = take(muon * back * 3 * square);
    d_polynomials = take(muon * back * 3 * square);
    d_iterates = take(muon * back * 2 * all);
  }

 private:
  int64_t take(int64_t count) {
    const int64_t part = total;
    total += (count + 15) / 16 * 16;
    return part;
  }
};

}  // namespace hebb
