#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// Keys in ascending order, and where each was; equal keys keep their order.
struct SortedKeys {
  const int32_t *keys, *positions;
};

/// Bytes of scratch that sort_keys needs for `count` keys.
int64_t sort_scratch_bytes(int64_t count);

/// Stable radix sort of keys [count] in [0, key_limit); count < 2^31. The result lies in `scratch` (16-byte aligned).
/// Cost: 3 launches and about 24 bytes per key for each 8 bits of key_limit.
SortedKeys sort_keys(Stream& stream, const int32_t* keys, int64_t count, int64_t key_limit, void* scratch);

}  // namespace hebb::HEBB_DEVICE
