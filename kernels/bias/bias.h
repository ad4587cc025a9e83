#pragma once
#include "core/kernel.h"

namespace hebb {

/// y [N, n] += bias [n].
struct AddBias {
  Tensor y, bias;
};
HEBB_KERNEL(AddBias)

/// out [n] += column sums of x [N, n], in row order. Bound: memory.
struct ColumnSums {
  Tensor out, x;
};
HEBB_KERNEL(ColumnSums)

}  // namespace hebb
