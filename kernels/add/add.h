#pragma once
#include "core/kernel.h"

namespace hebb {

/// y = alpha x (+ y when accumulate), elementwise over the flat memory; one dtype.
/// Bound: memory, 2 (3) passes.
struct AddScaled {
  Tensor y, x;
  double alpha;
  bool accumulate;
};
HEBB_KERNEL(AddScaled)

}  // namespace hebb
