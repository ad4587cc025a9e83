#pragma once
#include "core/kernel.h"

namespace hebb {

/// y [N, d] = rows of table [V, d] at ids [N] i32. Bound: memory.
struct EmbeddingForward {
  Tensor y, table, ids;
};
HEBB_KERNEL(EmbeddingForward)

/// d_table [V, d] += rows of d_y [N, d] by id, summed in token order (deterministic).
struct EmbeddingBackward {
  Tensor d_table, d_y, ids;
};
HEBB_KERNEL(EmbeddingBackward)

}  // namespace hebb
