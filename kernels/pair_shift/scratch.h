#pragma once
#include "kernels/pair_shift/pair_shift.h"

namespace hebb {

/// The gradient of the shift is summed by rows first.
struct PairShiftBackwardScratch {
  Tensor partial;  // [B] f64 on the CPU; the GPU sums in the scratch of its stream
};

}  // namespace hebb
