#pragma once
#include "core/stream.h"

namespace hebb {

/// y += scale x per channel: y, x [N, C]; scale [C], or [heads] with C / heads channels each (spec 62, section 3).
/// Bound: memory, 3 passes.
struct ChannelSkipForward {
  Tensor y, x, scale;
};
HEBB_KERNEL(ChannelSkipForward)

/// d_x += scale d_y; d_scale += sum over tokens (and channels of a head) of d_y x; undefined ones are not wanted.
/// partial [channel_skip_blocks(N), C] is scratch of the two-stage sum. Bound: memory, 4 passes.
struct ChannelSkipBackward {
  Tensor d_x, d_scale, partial;
  Tensor d_y, x, scale;
};
HEBB_KERNEL(ChannelSkipBackward)

/// Token blocks of the sum: a function of N only, never of threads.
int64_t channel_skip_blocks(int64_t tokens);

}  // namespace hebb
