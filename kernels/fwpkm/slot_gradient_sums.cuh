#pragma once
// Sums over the readers of each slot of a chunk, in one launch. Short lists: a thread per column and slot; long ones,
// which exist because some slots are read by everybody, by whole blocks in eight pieces. The order depends on the list
// alone.
#include <algorithm>

#include "kernels/fwpkm/fast_chunk.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int kLongList = 64;
constexpr int kListPieces = kEachThreads / 32;
constexpr unsigned kLongListBlocks = 528;    // stride over groups of 32 slots
constexpr unsigned kShortListBlocks = 1056;  // stride over the slots: 8 an SM of 132

/// FwpkmReaders on the device.
struct Readers {
  const int32_t *slots, *starts, *readers, *local, *count;
  int64_t capacity;  // of slots

  explicit Readers(const FwpkmReaders& r)
      : slots(r.slots.as<int32_t>()),
        starts(r.starts.as<int32_t>()),
        readers(r.readers.as<int32_t>()),
        local(r.local.as<int32_t>()),
        count(r.count.as<int32_t>()),
        capacity(r.slots.size(0)) {}
};

template <class T> struct Pairs {
  const T *v, *w;
  const int32_t* targets;
  bool pairs_only;

  explicit Pairs(const FwpkmPairs& p)
      : v(p.v.as<T>()), w(p.w.as<T>()), targets(p.targets.as<int32_t>()), pairs_only(p.pairs_only) {}
  __device__ float weight(int64_t token) const { return w != nullptr ? to_float(w[token]) : 1.0f; }
};

/// Terms of sum_readers: weight of an entry times the row of its token, where that has a pair.
struct WeightedRows {
  const float *weights, *rows;
  const int32_t* targets;  // null: all tokens
  FastChunk chunk;
  int64_t entries, width;

  __device__ __forceinline__ float term(int64_t g, int64_t c) const {
    const int64_t token = Split(g, entries).quotient;
    return targets != nullptr && targets[token] < 0 ? 0.0f : weights[g] * rows[local_of(chunk, token) * width + c];
  }
};

/// What a block sums at a time is either 256 columns of one short list, or 32 columns of long ones. Long lists, which
/// take longest, come first.
struct ReaderBlocks {
  int64_t long_groups, long_columns, short_columns;  // blocks that share the long lists; groups of columns
  int64_t of_short;                                  // blocks that share the short lists

  ReaderBlocks(int64_t capacity, int64_t columns)
      : long_groups(std::min(blocks_for(capacity, 32), kLongListBlocks)),
        long_columns(blocks_for(columns, 32)),
        short_columns(blocks_for(columns, kEachThreads)),
        of_short(std::min(blocks_for(capacity * short_columns, 1), kShortListBlocks)) {}
  __host__ __device__ int64_t of_long() const { return long_groups * long_columns; }
};

template <class F>
__device__ __forceinline__ void sum_short_list(const F& f, const Readers& in, int64_t u, int64_t column,
                                               int64_t columns) {
  if (column >= columns) { return; }
  const int32_t begin = in.starts[u], end = in.starts[u + 1];
  if (end - begin > kLongList) { return; }
  const auto place = f.begin(u, column);  // does not wait for the readers
  float sum = 0;
  for (int64_t i = begin; i < end; ++i) { sum += f.term(in.readers[i], column); }
  f.finish(place, u, column, end - begin, sum);
}

/// Long lists of groups of 32 slots from `group` on, one group in long_groups.
template <class F>
__device__ __forceinline__ void sum_long_lists(const F& f, const Readers& in, float (&sums)[kListPieces][32],
                                               int64_t group, int64_t step, int64_t column, int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x % 32), piece = static_cast<int>(threadIdx.x / 32);
  const int64_t count = in.count[0];
  for (; group < count; group += step) {
    // Nearly all lists are short: 32 are looked at together, by each warp alike.
    const int64_t own = group + lane;
    unsigned waiting = __ballot_sync(kAllLanes, own < count && in.starts[own + 1] - in.starts[own] > kLongList);
    for (; waiting != 0; waiting &= waiting - 1) {
      const int64_t u = group + __ffs(static_cast<int>(waiting)) - 1;
      const int64_t begin = in.starts[u], end = in.starts[u + 1], share = (end - begin + kListPieces - 1) / kListPieces;
      const int64_t first = begin + piece * share, last = first + share < end ? first + share : end;
      float sum = 0;
      for (int64_t i = first; i < last && column < columns; ++i) { sum += f.term(in.readers[i], column); }
      sums[piece][lane] = sum;
      __syncthreads();
      if (piece == 0 && column < columns) {
        float total = 0;
        HEBB_UNROLL
        for (int p = 0; p < kListPieces; ++p) { total += sums[p][lane]; }
        f.finish(f.begin(u, column), u, column, static_cast<int32_t>(end - begin), total);
      }
      __syncthreads();
    }
  }
}

/// Grid: see ReaderBlocks. F: term(entry, column), begin(number of the slot, column), which reads what the sum is added
/// to, and finish(what begin gave, number of the slot, column, readers, sum).
template <class F>
__global__ void __launch_bounds__(kEachThreads)
    reader_sums_kernel(F f, Readers in, int64_t columns, ReaderBlocks blocks) {
  HEBB_SHARED(float[kListPieces][32], sums);
  const int64_t block = blockIdx.x, of_long = blocks.of_long();
  if (block < of_long) {
    const Split at(block, blocks.long_columns);
    sum_long_lists(f, in, sums, at.quotient * 32, blocks.long_groups * 32, at.remainder * 32 + threadIdx.x % 32,
                   columns);
  } else {
    const int64_t count = in.count[0] * blocks.short_columns;
    for (int64_t i = block - of_long; i < count; i += blocks.of_short) {
      const Split at(i, blocks.short_columns);
      sum_short_list(f, in, at.quotient, at.remainder * kEachThreads + threadIdx.x, columns);
    }
  }
}

template <class F> void sum_readers(const char* name, Stream& stream, const Readers& in, int64_t columns, const F& f) {
  const ReaderBlocks blocks(in.capacity, columns);
  launch(name, reader_sums_kernel<F>, blocks_for(blocks.of_long() + blocks.of_short, 1), kEachThreads, 0, stream, f, in,
         columns, blocks);
}

}  // namespace hebb::HEBB_DEVICE
