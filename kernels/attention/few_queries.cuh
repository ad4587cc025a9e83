#pragma once
#include "kernels/attention/attention.h"
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE::attention {

/// AttentionForward by blocks of keys whose parts are joined; partial: AttentionForwardScratch.
void forward_few(Stream& stream, const AttentionForward& a, const Tensor& partial);

}  // namespace hebb::HEBB_DEVICE::attention
