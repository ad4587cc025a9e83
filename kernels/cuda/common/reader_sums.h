#pragma once
// Sums over the readers of each slot of a chunk. Short lists: a thread per column and slot; long ones, which exist because some slots are
// read by everybody, by whole blocks in eight pieces. The order depends on the list alone.
#include <algorithm>

#include "kernels/cuda/common/fast_chunk.h"

namespace hebb::HEBB_DEVICE {

constexpr int kLongList = 64;
constexpr int kListPieces = kEachThreads / 32;
constexpr unsigned kLongListBlocks = 528;  // stride over groups of 32 slots

/// FastReaders on the device.
struct Readers {
  const int32_t *slots, *starts, *readers, *local, *count;
  int64_t capacity;  // of slots

  explicit Readers(const FastReaders& r)
      : slots(r.slots.as<int32_t>()), starts(r.starts.as<int32_t>()), readers(r.readers.as<int32_t>()), local(r.local.as<int32_t>()),
        count(r.count.as<int32_t>()), capacity(r.slots.size(0)) {}
};

/// Row: number of a slot. F: term(entry, column) and finish(number of the slot, column, sum).
template <class F>
struct ShortLists {
  F f;
  Readers in;

  __device__ void operator()(int64_t u, int64_t column) const {
    if (u >= in.count[0] || in.starts[u + 1] - in.starts[u] > kLongList) {
      return;
    }
    float sum = 0;
    for (int64_t i = in.starts[u]; i < in.starts[u + 1]; ++i) {
      sum += f.term(in.readers[i], column);
    }
    f.finish(u, column, sum);
  }
};

template <class F>
__global__ void __launch_bounds__(kEachThreads) long_lists_kernel(F f, Readers in, int64_t columns) {
  HEBB_SHARED(float[kListPieces][32], sums);
  const int lane = static_cast<int>(threadIdx.x % 32), piece = static_cast<int>(threadIdx.x / 32);
  const int64_t column = static_cast<int64_t>(blockIdx.y) * 32 + lane;
  const int64_t count = in.count[0];
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * 32; group < count; group += static_cast<int64_t>(gridDim.x) * 32) {
    // Nearly all lists are short: 32 are looked at together, by each warp alike.
    const int64_t own = group + lane;
    unsigned waiting = __ballot_sync(kAllLanes, own < count && in.starts[own + 1] - in.starts[own] > kLongList);
    for (; waiting != 0; waiting &= waiting - 1) {
      const int64_t u = group + __ffs(static_cast<int>(waiting)) - 1;
      const int64_t begin = in.starts[u], end = in.starts[u + 1], share = (end - begin + kListPieces - 1) / kListPieces;
      const int64_t first = begin + piece * share, last = first + share < end ? first + share : end;
      float sum = 0;
      for (int64_t i = first; i < last && column < columns; ++i) {
        sum += f.term(in.readers[i], column);
      }
      sums[piece][lane] = sum;
      __syncthreads();
      if (piece == 0 && column < columns) {
        float total = 0;
        HEBB_UNROLL
        for (int p = 0; p < kListPieces; ++p) {
          total += sums[p][lane];
        }
        f.finish(u, column, total);
      }
      __syncthreads();
    }
  }
}

template <class F>
void sum_readers(const char* name, Stream& stream, const Readers& in, int64_t columns, const F& f) {
  each_element(name, stream, in.capacity, columns, ShortLists<F>{f, in});
  launch(name, long_lists_kernel<F>, dim3(std::min(blocks_for(in.capacity, 32), kLongListBlocks), blocks_for(columns, 32)), kEachThreads, 0,
         stream, f, in, columns);
}

}  // namespace hebb::HEBB_DEVICE
