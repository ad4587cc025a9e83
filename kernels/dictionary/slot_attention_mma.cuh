#pragma once
// What the tensor-core kernels of dictionaries share: the pieces of attention/mma.cuh on the lines of a chunk's queries
// and on slots.
#include "kernels/attention/mma.cuh"
#include "kernels/dictionary/slot_attention.cuh"

namespace hebb::HEBB_DEVICE::slots::mma {

using namespace attention_mma;

constexpr int kThreads = attention_mma::kThreads;
constexpr int kQueries = 128,
              kQueryTiles = kQueries / kWarps / 16;  // of a block that owns queries; of a warp, in tiles of 16

/// Lines and temperatures (times the scale, in units of log 2) of a block's queries.
struct Queries {
  int64_t line[kQueries];  // -1: none
  float factor[kQueries];

  __device__ __forceinline__ void load(const ReadLayout& n, const UnitChunk& at, int64_t first, const float* temps,
                                       float scale) {
    for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kThreads) {
      line[i] = at.line(n, first + i);
      load_factor(i, n, temps, scale);
    }
  }
  __device__ __forceinline__ void load_factor(int i, const ReadLayout& n, const float* temps, float scale) {
    factor[i] = scale * kLog2E * (temps != nullptr && line[i] >= 0 ? temps[line[i] % n.heads] : 1.0f);
  }
};

/// Row in the block of element i (8 i + lane / 4) of the warp's.
__device__ __forceinline__ int query_of(int i) { return warp_number() * 16 * kQueryTiles + 8 * i + lane_number() / 4; }

/// The slots that a block goes over, in shared memory: registers are short.
struct Source {
  const bf16 *keys, *values;
  const float* bias;  // or null
  int count;
  OldSlots old;  // of the unit; its table begins with the first slot

  __device__ void load(const Slots<bf16>& slots, const OldSlots& of_all, const ReadLayout& n, int64_t unit,
                       int64_t step, int64_t first, int64_t end) {
    const int64_t line = unit * slots.room + first,
                  key_line = slots.shared_keys ? unit % n.kv_heads * slots.room + first : line;
    keys = slots.keys + key_line * n.d;
    values = slots.values + line * n.dv;
    bias = slots.bias != nullptr ? slots.bias + line : nullptr;
    count = static_cast<int>(end - first);
    old = {};
    if (of_all.table != nullptr) {
      const int64_t version = unit * of_all.versions;
      old = {of_all.table + (unit * of_all.group + step % of_all.group) * slots.room + first,
             of_all.keys + version * n.d,
             of_all.values + version * n.dv,
             of_all.bias != nullptr ? of_all.bias + version : nullptr,
             of_all.versions,
             of_all.group};
    }
  }
};

/// Versions of the slots from `base` on, as far as there are slots.
template <int kRows>
__device__ __forceinline__ void copy_versions(int32_t (&versions)[kRows], const Source& from, int base) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < kRows && from.old.table != nullptr && base + i < from.count) {
    copy_async_4(versions + i, from.old.table + base + i, 4);
  }
}

/// As copy_dictionary, of slots that may be in versions.
template <int kRows, int kWidth>
__device__ __forceinline__ void gather_dictionary(TileOf<kRows, kWidth>& keys, TileOf<kRows, kWidth>& values,
                                                  float* bias, const int32_t* versions, const Source& from,
                                                  const ReadLayout& n, int base) {
  using P = Pieces<kRows, kWidth>;
  const P piece;
  const int count = from.count - base;
  HEBB_UNROLL
  for (int i = 0; i < P::kCount; ++i) {
    const int row = piece.row + i * P::kStep;
    const bool exists = row < count;
    const int32_t version = exists ? versions[row] : -1;
    const int64_t line = version >= 0 ? version : exists ? base + row : 0;
    bf16* const key = &keys.data[row * kStride<kWidth> + piece.channel];
    bf16* const value = &values.data[row * kStride<kWidth> + piece.channel];
    if (piece.channel < n.d) {
      copy_async_16(key, (version >= 0 ? from.old.keys : from.keys) + line * n.d + piece.channel, exists ? 16 : 0);
    }
    if (piece.channel < n.dv) {
      copy_async_16(value, (version >= 0 ? from.old.values : from.values) + line * n.dv + piece.channel,
                    exists ? 16 : 0);
    }
  }
  const int i = static_cast<int>(threadIdx.x);
  if (i < kRows && from.bias == nullptr) {
    bias[i] = 0;
  } else if (i < kRows) {
    const int32_t version = i < count ? versions[i] : -1;
    copy_async_4(bias + i, version >= 0 ? from.old.bias + version : from.bias + (i < count ? base + i : 0),
                 i < count ? 4 : 0);
  }
}

/// Starts copies of slots from `base` on, and of their biases (0 where there are none); what is behind the last slot
/// becomes zeros.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_dictionary(TileOf<kRows, kWidth>& keys, TileOf<kRows, kWidth>& values, float* bias,
                                                const Source& from, const ReadLayout& n, int base) {
  const int count = from.count - base, i = static_cast<int>(threadIdx.x);
  copy_rows(keys, from.keys + int64_t{base} * n.d, n.d, n.d, count);
  copy_rows(values, from.values + int64_t{base} * n.dv, n.dv, n.dv, count);
  if (i < kRows && from.bias != nullptr) {
    copy_async_4(bias + i, from.bias + base + i, i < count ? 4 : 0);
  } else if (i < kRows) {
    bias[i] = 0;
  }
}

/// Either, and the versions of the tile behind it. versions: of this tile (which all threads see) and of the next.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_slots_of(TileOf<kRows, kWidth>& keys, TileOf<kRows, kWidth>& values, float* bias,
                                              const int32_t (&versions)[kRows], int32_t (&next)[kRows],
                                              const Source& from, const ReadLayout& n, int base) {
  if (from.old.table == nullptr) {
    copy_dictionary(keys, values, bias, from, n, base);
    return;
  }
  gather_dictionary(keys, values, bias, versions, from, n, base);
  copy_versions(next, from, base + kRows);
}

__device__ __forceinline__ void load_floats(float& first, float& second, const float* from) {
  const Words<2> pair = load_words<2>(from);
  first = __uint_as_float(pair.word[0]);
  second = __uint_as_float(pair.word[1]);
}

__device__ __forceinline__ void store_floats(float* to, float first, float second) {
  store_words(to, Words<2>{{__float_as_uint(first), __float_as_uint(second)}});
}

}  // namespace hebb::HEBB_DEVICE::slots::mma
