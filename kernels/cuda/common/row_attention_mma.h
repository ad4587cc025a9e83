#pragma once
// What the tensor-core kernels of dictionaries share: the pieces of attention_mma.h on the lines of a chunk's queries and on rows.
#include "kernels/cuda/common/attention_mma.h"
#include "kernels/cuda/common/row_attention.h"

namespace hebb::HEBB_DEVICE::rows::mma {

using namespace attention_mma;

constexpr int kThreads = attention_mma::kThreads;
constexpr int kQueries = 128, kQueryTiles = kQueries / kWarps / 16;  // of a block that owns queries; of a warp, in tiles of 16

/// Lines and temperatures (times the scale, in units of log 2) of a block's queries.
struct Queries {
  int64_t line[kQueries];  // -1: none
  float factor[kQueries];

  __device__ __forceinline__ void load(const Layout& n, const Place& at, int64_t first, const float* temps, float scale) {
    for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kThreads) {
      line[i] = at.line(n, first + i);
      load_factor(i, n, temps, scale);
    }
  }
  __device__ __forceinline__ void load_factor(int i, const Layout& n, const float* temps, float scale) {
    factor[i] = scale * kLog2E * (temps != nullptr && line[i] >= 0 ? temps[line[i] % n.heads] : 1.0f);
  }
};

/// Row in the block of element i (8 i + lane / 4) of the warp's.
__device__ __forceinline__ int query_of(int i) { return warp_number() * 16 * kQueryTiles + 8 * i + lane_number() / 4; }

/// The rows that a block walks over, in shared memory: registers are short.
struct Source {
  const bf16 *keys, *values;
  const float* bias;  // or null
  int count;

  __device__ void load(const Rows<bf16>& rows, const Layout& n, int64_t unit, int64_t first, int64_t end) {
    const int64_t line = unit * rows.room + first, key_line = rows.shared_keys ? unit % n.kv_heads * rows.room + first : line;
    keys = rows.keys + key_line * n.d;
    values = rows.values + line * n.dv;
    bias = rows.bias != nullptr ? rows.bias + line : nullptr;
    count = static_cast<int>(end - first);
  }
};

/// Starts copies of rows from `base` on, and of their biases (0 where there are none); what is behind the last row becomes zeros.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_dictionary(TileOf<kRows, kWidth>& keys, TileOf<kRows, kWidth>& values, float* bias, const Source& from,
                                                const Layout& n, int base HEBB_WHERE_PARAMETER) {
  const int count = from.count - base, i = static_cast<int>(threadIdx.x);
  copy_rows(keys, from.keys + int64_t{base} * n.d, n.d, n.d, count HEBB_WHERE_ARGUMENT);
  copy_rows(values, from.values + int64_t{base} * n.dv, n.dv, n.dv, count HEBB_WHERE_ARGUMENT);
  if (i < kRows && from.bias != nullptr) {
    copy_async_4(bias + i, from.bias + base + i, i < count ? 4 : 0 HEBB_WHERE_ARGUMENT);
  } else if (i < kRows) {
    bias[i] = 0;
  }
}

__device__ __forceinline__ void load_floats(float& first, float& second, const float* from) {
#ifdef HEBB_SIMT
  first = from[0];
  second = from[1];
#else
  const float2 pair = *reinterpret_cast<const float2*>(from);
  first = pair.x;
  second = pair.y;
#endif
}

__device__ __forceinline__ void store_floats(float* to, float first, float second) {
#ifdef HEBB_SIMT
  to[0] = first;
  to[1] = second;
#else
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
#endif
}

}  // namespace hebb::HEBB_DEVICE::rows::mma
