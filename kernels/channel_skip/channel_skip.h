#pragma once
#include "core/kernel.h"

namespace hebb {

/// y += scale x per channel: y, x [N, C]; scale [C], or [heads] with C / heads channels each (docs/layers/mamba2.md,
/// Recurrence). y may be fp32 where x is bf16. Bound: memory, 3 passes.
struct ChannelSkipForward {
  Tensor y, x, scale;
};
HEBB_KERNEL(ChannelSkipForward)

/// d_x += scale d_y; d_scale += sum over tokens (and channels of a head) of d_y x; undefined ones are not wanted.
/// d_y may be fp32 where x and d_x are bf16. Bound: memory, 4 passes.
struct ChannelSkipBackward {
  Tensor d_x, d_scale;
  Tensor d_y, x, scale;
};
HEBB_KERNEL_WITH_SCRATCH(ChannelSkipBackward)

}  // namespace hebb
