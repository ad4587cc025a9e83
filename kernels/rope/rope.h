#pragma once
#include <cmath>

#include "core/kernel.h"

namespace hebb {

/// Rotary frequencies (docs/layers/attention.md, Rotary positions).
struct RopeSpec {
  double theta = 10000.0;
  int64_t dims = 0;       // rotated channels, even
  bool endpoint = false;  // theta^(-i / (dims/2 - 1)) instead of theta^(-2i / dims)
  bool yarn = false;      // YaRN's extension
  bool llama3 = false;    // Llama 3.1's; not both
  double factor = 1.0;    // of either; the rest is ignored without one
  int64_t original = 0;   // training length L0
  double beta_fast = 32.0, beta_slow = 1.0;
  double attention_factor = 1.0;  // multiplies cos and sin
  bool truncate = true;           // YaRN's first and last slowed pair are whole numbers
  double low_freq_factor = 1.0, high_freq_factor = 4.0;

  bool operator==(const RopeSpec&) const = default;
  /// Radians per position of pair i, 0 <= i < dims/2.
  double frequency(int64_t i) const;
};

/// table [M, 2, dims/2] = cos and sin of position * frequency, times the attention factor; angles in
/// double. Entry m is for position first + m or, where doc_start [B, T] i32 is given (M = B T), for the
/// document position of token m.
/// Bound: cos and sin of M dims/2 angles in double; one table serves all layers of a pass.
struct RopeTable {
  Tensor table, doc_start;
  int64_t first;
  RopeSpec spec;
};
HEBB_KERNEL(RopeTable)

/// y = x with the first dims channels of every head rotated: pairs (i, i + dims/2) become
/// (a cos - b sin, b cos + a sin). x, y [B, T, H, D]; table as above: indexed by token when
/// `by_token`, else by t - doc_start - first. `inverse` applies the transposed rotation (the gradient);
/// `accumulate` adds to y. x and y may be the same memory.
/// Bound: memory, 2 passes.
struct Rope {
  Tensor y, x, table, doc_start;
  int64_t first;
  bool by_token, inverse, accumulate;
};
HEBB_KERNEL(Rope)

}  // namespace hebb
