#pragma once
#include "core/kernel.h"

namespace hebb {

/// Parts of an ordered sum that one binary tree takes: the largest power of two that divides `parts` (at least 1).
constexpr int64_t tree_size(int64_t parts) { return parts & -parts; }

/// to [N] = the ordered sum of the rows of parts [W, N] (docs/design/data-parallel.md): with n = tree_size(W), a binary
/// tree over neighbours within each run of n rows, then the W / n trees from left to right. One rounding to nearest an
/// addition. f32 or f64 (f32 on a GPU, W up to 2,048 times an odd number); to and parts do not overlap.
/// Bound: memory, W + 1 passes over N elements.
struct OrderedSum {
  Tensor to, parts;
};
HEBB_KERNEL(OrderedSum)

/// partial [S] f64 = sums of squares of x[begin[s]] to x[end[s] - 1], added in double in an order that depends on
/// end[s] - begin[s] alone. x [N] f32 or f64 (f32 on a GPU); begin, end [S] i64. Bound: memory, 1 pass.
struct SegmentSquares {
  Tensor partial, x, begin, end;
};
HEBB_KERNEL(SegmentSquares)

}  // namespace hebb
