#include <algorithm>

#include "kernels/common/cuda/scan.cuh"
#include "kernels/common/cuda/sort.cuh"
#include "kernels/fwpkm/scratch.h"
#include "kernels/fwpkm/slot_gradient_sums.cuh"

// Values of a product-key memory. Everything scales with the R E entries of a chunk and the U slots that they touch,
// never with the table: readers are found by a radix sort (about 70 bytes an entry), slots are read and written by
// entry or by slot. Bound: HBM, E slots a token of reading, every touched slot twice of writing; errors and readings of
// a chunk stay in L2. 2 E dv FLOPs a token each.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kScanThreads = 1024,
              kPerThread = 4;  // a round of a scan takes longer for its barriers than for its loads

/// Slots of some chunks' entries as keys, chunk after chunk: the table's slots and `table` itself, for tokens that do
/// not count, of the first chunk, then those of the next one. Row: token of the chunks in this order.
struct GatherSlots {
  int32_t* keys;
  const int32_t *slots, *targets;
  FastChunks chunks;
  int64_t entries, table;
  bool pairs_only;

  __device__ void operator()(int64_t r, int64_t j) const {
    const Split at(r, chunks.all.batch * chunks.size);  // only the last chunk may be shorter
    const int64_t token = token_of(chunk_at(chunks, at.quotient), at.remainder);
    const int64_t slot = pairs_only && targets[token] < 0 ? table : slots[token * entries + j];
    keys[r * entries + j] = static_cast<int32_t>(at.quotient * (table + 1) + slot);
  }
};

/// Of all chunks, as in FwpkmReaders.
struct ReaderLists {
  int32_t *slots, *starts, *readers, *local, *count;
};

// Grid: chunks. A block goes over its sorted entries, a distinct slot for each new key.
__global__ void __launch_bounds__(kScanThreads)
    number_slots_kernel(ReaderLists out, SortedKeys sorted, FastChunks chunks, int64_t entries, int64_t table,
                        int64_t most) {
  const FastChunk chunk = chunk_at(chunks, blockIdx.x);
  const int64_t all = chunk.batch * chunk.count * entries, place = blockIdx.x * chunk.batch * chunks.size * entries;
  const auto base = static_cast<int32_t>(blockIdx.x * (table + 1)), none = static_cast<int32_t>(base + table);
  int32_t *const slots = out.slots + blockIdx.x * most, *const starts = out.starts + blockIdx.x * (most + 1),
                 *const count = out.count + blockIdx.x;
  int used = 0;
  if (threadIdx.x == 0 && sorted.keys[place] == none) {
    count[0] = 0;
    starts[0] = 0;
  }
  const auto key_at = [&](int64_t i) { return 0 <= i && i < all ? sorted.keys[place + i] : none; };
  for (int64_t first = 0; first < all; first += kScanThreads * kPerThread) {
    const int64_t begin = first + static_cast<int64_t>(threadIdx.x) * kPerThread;
    int32_t keys[kPerThread + 2];  // those of the thread, and one on either side
    int fresh = 0;
    HEBB_UNROLL
    for (int j = 0; j < kPerThread + 2; ++j) { keys[j] = key_at(begin + j - 1); }
    HEBB_UNROLL
    for (int j = 1; j <= kPerThread; ++j) { fresh += keys[j] != none && keys[j] != keys[j - 1] ? 1 : 0; }
    int total;
    int u = used + block_scan(fresh, total) - 1;
    used += total;
    HEBB_UNROLL
    for (int j = 1; j <= kPerThread; ++j) {
      if (keys[j] == none) { continue; }
      const int64_t i = begin + j - 1, g = EntryOf(chunk, sorted.positions[place + i] - place, entries).entry;
      if (keys[j] != keys[j - 1]) {
        ++u;
        slots[u] = keys[j] - base;
        starts[u] = static_cast<int32_t>(i);
      }
      out.readers[place + i] = static_cast<int32_t>(g);
      out.local[g] = u;
      if (keys[j + 1] == none) {
        starts[u + 1] = static_cast<int32_t>(i + 1);
        count[0] = u + 1;
      }
    }
  }
}

/// Row: token of the chunk.
template <class T> struct FwpkmRead {
  T* vh;
  float* error;  // null: not wanted
  const int32_t* slots;
  const float *weights, *values;
  Pairs<T> pairs;
  FastChunk chunk;
  int64_t entries, width;

  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t token = token_of(chunk, r);
    float sum = 0;
    for (int64_t g = token * entries; g < (token + 1) * entries; ++g) {
      sum += weights[g] * values[slots[g] * width + c];
    }
    const T rounded = from_float<T>(sum);
    vh[token * width + c] = rounded;
    const int64_t target = error != nullptr ? pairs.targets[token] : -1;
    if (target >= 0) {
      error[r * width + c] = pairs.weight(token) * (to_float(pairs.v[target * width + c]) - to_float(rounded));
    }
  }
};

/// Row: number of a slot.
struct Restore {
  float* values;
  const float* before;
  Readers readers;
  int64_t width;

  __device__ void operator()(int64_t u, int64_t c) const {
    if (u < readers.count[0]) { values[readers.slots[u] * width + c] = before[u * width + c]; }
  }
};

struct WriteSum : WeightedRows {
  float *values, *old;  // old null: not wanted
  Readers readers;
  float step;

  struct OldValue {
    float *to, before;
  };
  __device__ __forceinline__ OldValue begin(int64_t u, int64_t c) const {
    float* const to = values + readers.slots[u] * width + c;
    return {to, *to};
  }
  __device__ __forceinline__ void finish(const OldValue& at, int64_t u, int64_t c, int32_t count, float sum) const {
    if (old != nullptr) { old[u * width + c] = at.before; }
    *at.to = at.before + step / static_cast<float>(count) * sum;
  }
};

constexpr int kMeasureBlocks = 128;

// partial [2, blocks]; block b takes the tokens and slots b, b + blocks, ...
template <class T>
__global__ void __launch_bounds__(kEachThreads)
    measure_kernel(double* partial, const float* values, const float* before, const T* vh, Pairs<T> pairs,
                   Readers readers, FastChunk chunk, int64_t all, int64_t width) {
  double sums[2] = {};
  for (int64_t r = blockIdx.x; r < all; r += gridDim.x) {
    const int64_t token = token_of(chunk, r), target = pairs.targets[token];
    for (int64_t c = threadIdx.x; c < width && target >= 0; c += kEachThreads) {
      const double e = static_cast<double>(to_float(pairs.v[target * width + c])) -
                       static_cast<double>(to_float(vh[token * width + c]));
      sums[0] += 0.5 * static_cast<double>(pairs.weight(token)) * e * e;
    }
  }
  for (int64_t u = blockIdx.x; u < readers.count[0]; u += gridDim.x) {
    for (int64_t c = threadIdx.x; c < width; c += kEachThreads) {
      const double moved =
          static_cast<double>(values[readers.slots[u] * width + c]) - static_cast<double>(before[u * width + c]);
      sums[1] += moved * moved;
    }
  }
  BlockReducer<double> reducer;
  reducer.sum(sums);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sums[0];
    partial[gridDim.x + blockIdx.x] = sums[1];
  }
}

/// Row: 0.
struct AddMeasures {
  double* sums;
  const double* partial;
  int64_t blocks;

  __device__ void operator()(int64_t which, int lane) const {
    const double sum = warp_sum_of(blocks, lane, [&](int64_t i) { return partial[which * blocks + i]; });
    if (lane == 0) { sums[which] += sum; }
  }
};

int64_t entries_of(const FwpkmLookup& lookup) { return lookup.weights.numel() / lookup.weights.size(0); }

/// Of chunks whose keys 31 bits can tell apart: `first`, the next one and so on.
void index_chunks(Stream& stream, const FwpkmIndexReaders& a, const Tensor& memory, const FastChunks& chunks,
                  int64_t first) {
  const int64_t entries = a.slots.numel() / a.slots.size(0), all = chunks.all.tokens() * entries,
                most_entries = chunks.all.batch * chunks.size * entries;
  const int64_t most = fwpkm_capacity(most_entries, a.table);
  auto* const keys = reinterpret_cast<int32_t*>(memory.as<int64_t>());
  int32_t* const scratch = keys + (all + 3) / 4 * 4;
  HEBB_ASSERT((all + 3) / 4 * 16 + sort_scratch_bytes(all) <= memory.bytes());
  each_element("fwpkm_reader_keys", stream, chunks.all.tokens(), entries,
               GatherSlots{keys, a.slots.as<int32_t>(), a.pairs.targets.as<int32_t>(), chunks, entries, a.table,
                           a.pairs.pairs_only});
  const SortedKeys sorted = sort_keys(stream, keys, all, chunks.count() * (a.table + 1), scratch);
  const ReaderLists out{a.out.slots.as<int32_t>() + first * most, a.out.starts.as<int32_t>() + first * (most + 1),
                        a.out.readers.as<int32_t>() + first * most_entries, a.out.local.as<int32_t>(),
                        a.out.count.as<int32_t>() + first};
  HEBB_LAUNCH(number_slots_kernel, blocks_for(chunks.count(), 1), kScanThreads, 0, stream, out, sorted, chunks, entries,
              a.table, most);
}

}  // namespace

void run(Stream& stream, const FwpkmIndexReaders& a, const FwpkmIndexReadersScratch& scratch) {
  const int64_t together = std::max<int64_t>(1, ((int64_t{1} << 31) - 1) / (a.table + 1)), size = a.chunks.size;
  for (int64_t c = 0; c < a.chunks.count(); c += together) {
    FastChunks some = a.chunks;
    some.all.first += c * size;
    some.all.count = std::min(together * size, a.chunks.all.count - c * size);
    index_chunks(stream, a, scratch.sorted, some, c);
  }
}

void run(Stream& stream, const FwpkmReadValues& a) {
  const int64_t entries = entries_of(a.lookup), width = a.values.size(1);
  dispatch_float(a.vh.dtype, [&]<class T>(T) {
    each_element(
        "fwpkm_read", stream, a.chunk.tokens(), width,
        FwpkmRead<T>{a.vh.as<T>(), a.error.as<float>(), a.lookup.slots.as<int32_t>(), a.lookup.weights.as<float>(),
                     a.values.as<float>(), Pairs<T>(a.pairs), a.chunk, entries, width});
  });
}

void run(Stream& stream, const FwpkmRestoreValues& a) {
  const Readers readers(a.readers);
  each_element("fwpkm_restore", stream, readers.capacity, a.values.size(1),
               Restore{a.values.as<float>(), a.before.as<float>(), readers, a.values.size(1)});
}

void run(Stream& stream, const FwpkmWriteValues& a) {
  const int64_t width = a.values.size(1), entries = entries_of(a.lookup);
  const Readers readers(a.readers);
  sum_readers("fwpkm_write", stream, readers, width,
              WriteSum{{a.lookup.weights.as<float>(), a.error.as<float>(), a.pairs.targets.as<int32_t>(), a.chunk,
                        entries, width},
                       a.values.as<float>(),
                       a.before.as<float>(),
                       readers,
                       static_cast<float>(a.step)});
}

void run(Stream& stream, const FwpkmMeasureStep& a) {
  auto* const partial = static_cast<double*>(stream_scratch(stream).data);
  const Readers readers(a.readers);
  const int64_t blocks = std::clamp<int64_t>(std::max(a.chunk.tokens(), readers.capacity), 1, kMeasureBlocks);
  dispatch_float(a.vh.dtype, [&]<class T>(T) {
    HEBB_LAUNCH(measure_kernel<T>, blocks_for(blocks, 1), kEachThreads, 0, stream, partial, a.values.as<float>(),
                a.before.as<float>(), a.vh.as<T>(), Pairs<T>(a.pairs), readers, a.chunk, a.chunk.tokens(),
                a.values.size(1));
  });
  each_warp("fwpkm_measures", stream, 2, AddMeasures{a.sums.as<double>(), partial, blocks});
}

}  // namespace hebb::HEBB_DEVICE
