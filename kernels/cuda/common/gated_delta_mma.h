#pragma once
// The gated delta rule on tensor cores: what it takes and where it is.
#include "kernels/cuda/common/gated_delta_sweep.h"

namespace hebb::HEBB_DEVICE::delta_mma {

/// bf16, chunks of up to 64 tokens, keys of a multiple of 8 up to 128, values of a multiple of 8, no predictions.
inline bool takes(const GatedDeltaForward& a) {
  const int64_t dk = a.k.size(3), dv = a.v.size(3);
  return a.v.dtype == DType::bf16 && !a.prediction.defined() && a.grid.longest <= 64 && dk <= 128 && dk % 8 == 0 &&
         can_vectorise<8>(dv, a.q.data, a.k.data, a.v.data, a.o.data);
}

void forward(Stream& stream, const GatedDeltaForward& a);

}  // namespace hebb::HEBB_DEVICE::delta_mma
