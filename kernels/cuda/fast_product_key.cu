#include "kernels/cuda/common/reader_sums.h"
#include "kernels/cuda/common/scan.h"
#include "kernels/cuda/common/sort.h"

// Values of a product-key memory. Everything scales with the R E entries of a chunk and the U slots that they touch, never with the
// table: readers are found by a radix sort (about 70 bytes an entry), rows are read and written by entry or by slot. Bound: HBM, E rows
// a token of reading, every touched row twice of writing; errors and readings of a chunk stay in L2. 2 E dv FLOPs a token each.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kScanThreads = 1024, kPerThread = 4;  // a round of a scan takes longer for its barriers than for its loads

template <class T>
struct Pairs {
  const T *v, *w;
  const int32_t* targets;
  bool pairs_only;

  explicit Pairs(const FastPairs& p) : v(p.v.as<T>()), w(p.w.as<T>()), targets(p.targets.as<int32_t>()), pairs_only(p.pairs_only) {}
  __device__ float weight(int64_t token) const { return w != nullptr ? to_float(w[token]) : 1.0f; }
};

/// Slots of a chunk's entries as keys; `none` for tokens that do not count. Row: token of the chunk.
struct GatherSlots {
  int32_t* keys;
  const int32_t *slots, *targets;
  FastChunk chunk;
  int64_t entries;
  int32_t none;
  bool pairs_only;

  __device__ void operator()(int64_t r, int64_t j) const {
    const int64_t token = token_of(chunk, r);
    keys[r * entries + j] = pairs_only && targets[token] < 0 ? none : slots[token * entries + j];
  }
};

struct ReaderLists {
  int32_t *slots, *starts, *readers, *local, *count;
};

// One block walks over the sorted entries, a distinct slot for each new key.
__global__ void __launch_bounds__(kScanThreads) number_slots_kernel(ReaderLists out, SortedKeys sorted, FastChunk chunk, int64_t entries,
                                                                    int64_t all, int32_t none) {
  int used = 0;
  if (threadIdx.x == 0 && sorted.keys[0] == none) {
    out.count[0] = 0;
    out.starts[0] = 0;
  }
  const auto key_at = [&](int64_t i) { return 0 <= i && i < all ? sorted.keys[i] : none; };
  for (int64_t first = 0; first < all; first += kScanThreads * kPerThread) {
    const int64_t begin = first + static_cast<int64_t>(threadIdx.x) * kPerThread;
    int32_t keys[kPerThread + 2];  // those of the thread, and one on either side
    int fresh = 0;
    HEBB_UNROLL
    for (int j = 0; j < kPerThread + 2; ++j) {
      keys[j] = key_at(begin + j - 1);
    }
    HEBB_UNROLL
    for (int j = 1; j <= kPerThread; ++j) {
      fresh += keys[j] != none && keys[j] != keys[j - 1] ? 1 : 0;
    }
    int total;
    int u = used + block_scan(fresh, total) - 1;
    used += total;
    HEBB_UNROLL
    for (int j = 1; j <= kPerThread; ++j) {
      if (keys[j] == none) {
        continue;
      }
      const int64_t i = begin + j - 1, g = EntryOf(chunk, sorted.positions[i], entries).entry;
      if (keys[j] != keys[j - 1]) {
        ++u;
        out.slots[u] = keys[j];
        out.starts[u] = static_cast<int32_t>(i);
      }
      out.readers[i] = static_cast<int32_t>(g);
      out.local[g] = u;
      if (keys[j + 1] == none) {
        out.starts[u + 1] = static_cast<int32_t>(i + 1);
        out.count[0] = u + 1;
      }
    }
  }
}

template <class T>
struct Read {
  T* vh;
  const int32_t* slots;
  const float *weights, *values;
  FastChunk chunk;
  int64_t entries, width;

  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t token = token_of(chunk, r);
    float sum = 0;
    for (int64_t g = token * entries; g < (token + 1) * entries; ++g) {
      sum += weights[g] * values[slots[g] * width + c];
    }
    vh[token * width + c] = from_float<T>(sum);
  }
};

/// Row: number of a slot.
struct Keep {
  float *rows, *values;
  Readers readers;
  int64_t width;
  bool restore;

  __device__ void operator()(int64_t u, int64_t c) const {
    if (u < readers.count[0]) {
      float &row = rows[u * width + c], &value = values[readers.slots[u] * width + c];
      (restore ? value : row) = restore ? row : value;
    }
  }
};

template <class T>
struct Error {
  float* error;
  const T* vh;
  Pairs<T> pairs;
  FastChunk chunk;
  int64_t width;

  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t token = token_of(chunk, r), target = pairs.targets[token];
    if (target >= 0) {
      error[r * width + c] = pairs.weight(token) * (to_float(pairs.v[target * width + c]) - to_float(vh[token * width + c]));
    }
  }
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

struct WriteSum : WeightedRows {
  float* values;
  Readers readers;
  float step;

  __device__ __forceinline__ void finish(int64_t u, int64_t c, float sum) const {
    values[readers.slots[u] * width + c] += step / static_cast<float>(readers.starts[u + 1] - readers.starts[u]) * sum;
  }
};

constexpr int kMeasureBlocks = 128;

// partial [2, kMeasureBlocks]; block b takes the tokens and slots b, b + kMeasureBlocks, ...
template <class T>
__global__ void __launch_bounds__(kEachThreads) measure_kernel(double* partial, const float* values, const float* rows, const T* vh,
                                                               Pairs<T> pairs, Readers readers, FastChunk chunk, int64_t all,
                                                               int64_t width) {
  double sums[2] = {};
  for (int64_t r = blockIdx.x; r < all; r += kMeasureBlocks) {
    const int64_t token = token_of(chunk, r), target = pairs.targets[token];
    for (int64_t c = threadIdx.x; c < width && target >= 0; c += kEachThreads) {
      const double e = static_cast<double>(to_float(pairs.v[target * width + c])) - static_cast<double>(to_float(vh[token * width + c]));
      sums[0] += 0.5 * static_cast<double>(pairs.weight(token)) * e * e;
    }
  }
  for (int64_t u = blockIdx.x; u < readers.count[0]; u += kMeasureBlocks) {
    for (int64_t c = threadIdx.x; c < width; c += kEachThreads) {
      const double moved = static_cast<double>(values[readers.slots[u] * width + c]) - static_cast<double>(rows[u * width + c]);
      sums[1] += moved * moved;
    }
  }
  BlockReducer<double> reducer;
  reducer.sum(sums);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sums[0];
    partial[kMeasureBlocks + blockIdx.x] = sums[1];
  }
}

/// Row: 0.
struct AddMeasures {
  double* sums;
  const double* partial;

  __device__ void operator()(int64_t which, int lane) const {
    double sum = 0;
    for (int i = lane; i < kMeasureBlocks; i += 32) {
      sum += partial[which * kMeasureBlocks + i];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      sums[which] += sum;
    }
  }
};

/// What the backward kernels share; see FastValuesBackward.
template <class T>
struct Backward {
  const T *d_out, *vh;
  const float *rows, *values, *weights;
  float *d_weights, *adjoint, *d_vh;
  const int32_t *slots, *at;
  Pairs<T> pairs;
  Readers readers;
  FastChunk chunk;
  int64_t entries, width;
  float step;
  bool through;

  __device__ int64_t target(int64_t token) const { return through ? pairs.targets[token] : -1; }
  /// Gradient of what the update made of the row of entry g; null where no later chunk read it.
  __device__ const float* d_next(int64_t g) const {
    const int32_t place = at[readers.local[g]];
    return place < 0 ? nullptr : adjoint + place * width;
  }
  /// Step over the number of readers.
  __device__ float share(int64_t g) const {
    const int32_t* const starts = readers.starts + readers.local[g];
    return step / static_cast<float>(starts[1] - starts[0]);
  }
  __device__ EntryOf entry(int64_t row) const { return {chunk, row, entries}; }
};

/// Row: number of a slot.
struct FindPlaces {
  int32_t* at;
  const int32_t* place;
  Readers readers;

  __device__ void operator()(int64_t u, int64_t) const {
    if (u < readers.count[0]) {
      at[u] = place[readers.slots[u]] - 1;
    }
  }
};

/// d_weights = step / n <d_next, v - vh>, to be weighed with w. Row: entry of a token of the chunk.
template <class T>
struct Inner {
  Backward<T> b;

  __device__ void operator()(int64_t row, int lane) const {
    const auto [token, g] = b.entry(row);
    const int64_t target = b.target(token);
    const float* const d = target >= 0 ? b.d_next(g) : nullptr;
    float sum = 0;
    for (int64_t c = lane; c < b.width && d != nullptr; c += 32) {
      sum += d[c] * (to_float(b.pairs.v[target * b.width + c]) - to_float(b.vh[token * b.width + c]));
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      b.d_weights[g] = d != nullptr ? b.share(g) * sum : 0.0f;
    }
  }
};

/// d_vh, and d_v of the target. Row: token of the chunk.
template <class T>
struct ReadingGradient {
  T* d_v;
  Backward<T> b;

  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t token = token_of(b.chunk, r), target = b.target(token);
    float push = 0;
    for (int64_t g = token * b.entries; g < (token + 1) * b.entries && target >= 0; ++g) {
      const float* const d = b.d_next(g);
      push += d != nullptr ? b.weights[g] * b.share(g) * d[c] : 0.0f;
    }
    push *= target >= 0 ? b.pairs.weight(token) : 0.0f;
    b.d_vh[r * b.width + c] = to_float(b.d_out[token * b.width + c]) - push;
    if (target >= 0) {
      write(d_v[target * b.width + c], push, true);
    }
  }
};

/// Before d_weights is complete. Row: token of the chunk.
template <class T>
struct WriteWeightGradient {
  T* d_w;
  Backward<T> b;

  __device__ void operator()(int64_t r, int lane) const {
    const int64_t token = token_of(b.chunk, r);
    float sum = 0;
    for (int64_t g = token * b.entries + lane; g < (token + 1) * b.entries; g += 32) {
      sum += b.weights[g] * b.d_weights[g];
    }
    sum = warp_sum(sum);
    if (lane == 0 && b.target(token) >= 0) {
      write(d_w[token], sum, true);
    }
  }
};

/// Row: entry of a token of the chunk.
template <class T>
struct SlotWeightGradient {
  Backward<T> b;

  __device__ void operator()(int64_t row, int lane) const {
    const auto [token, g] = b.entry(row);
    const float* const old = b.rows != nullptr ? b.rows + b.readers.local[g] * b.width : b.values + b.slots[g] * b.width;
    const float* const d_vh = b.d_vh + Split(row, b.entries).quotient * b.width;
    float sum = 0;
    for (int64_t c = lane; c < b.width; c += 32) {
      sum += old[c] * d_vh[c];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      b.d_weights[g] = (b.target(token) >= 0 ? b.pairs.weight(token) * b.d_weights[g] : 0.0f) + sum;
    }
  }
};

// One block: rows of the adjoint for slots that have none.
__global__ void __launch_bounds__(kScanThreads) take_places_kernel(int32_t* place, int32_t* used, const int32_t* at, Readers readers) {
  int next = used[0];
  __syncthreads();
  const int64_t count = readers.count[0];
  for (int64_t first = 0; first < count; first += kScanThreads * kPerThread) {
    const int64_t begin = first + static_cast<int64_t>(threadIdx.x) * kPerThread;
    bool takes[kPerThread];
    int taken = 0;
    HEBB_UNROLL
    for (int j = 0; j < kPerThread; ++j) {
      takes[j] = begin + j < count && at[begin + j] < 0;
      taken += takes[j] ? 1 : 0;
    }
    int total, own = next + block_scan(taken, total);
    HEBB_UNROLL
    for (int j = 0; j < kPerThread; ++j) {
      if (takes[j]) {
        place[readers.slots[begin + j]] = ++own;
      }
    }
    next += total;
  }
  if (threadIdx.x == 0) {
    used[0] = next;
  }
}

struct AdjointSum : WeightedRows {
  float* adjoint;
  const int32_t *place, *at;
  Readers readers;

  __device__ __forceinline__ void finish(int64_t u, int64_t c, float sum) const {
    float& d = adjoint[(place[readers.slots[u]] - 1) * width + c];
    d = at[u] < 0 ? sum : d + sum;
  }
};

template <class T>
void values_backward(Stream& stream, const FastValuesBackward& a) {
  const int64_t width = a.values.size(1), entries = a.lookup.weights.numel() / a.lookup.weights.size(0), rows = a.chunk.tokens();
  const Readers readers(a.readers);
  const Backward<T> b{a.d_out.as<T>(), a.vh.as<T>(), a.rows.as<float>(), a.values.as<float>(), a.lookup.weights.as<float>(),
                      a.d_weights.as<float>(), a.adjoint.as<float>(), a.d_vh.as<float>(), a.lookup.slots.as<int32_t>(),
                      a.at.as<int32_t>(), Pairs<T>(a.pairs), readers, a.chunk, entries, width, static_cast<float>(a.step), a.through};
  if (a.through) {
    each_element("fast_find_places", stream, readers.capacity, 1, FindPlaces{a.at.as<int32_t>(), a.place.as<int32_t>(), readers});
    each_warp("fast_inner", stream, rows * entries, Inner<T>{b});
  }
  each_element("fast_d_reading", stream, rows, width, ReadingGradient<T>{a.d_v.as<T>(), b});
  if (a.through && a.d_w.defined()) {
    each_warp("fast_d_w", stream, rows, WriteWeightGradient<T>{a.d_w.as<T>(), b});
  }
  each_warp("fast_d_weights", stream, rows * entries, SlotWeightGradient<T>{b});
  if (a.through && a.earlier) {
    HEBB_LAUNCH(take_places_kernel, 1, kScanThreads, 0, stream, a.place.as<int32_t>(), a.used.as<int32_t>(), a.at.as<int32_t>(), readers);
    sum_readers("fast_adjoint", stream, readers, width,
                AdjointSum{{b.weights, b.d_vh, nullptr, a.chunk, entries, width}, b.adjoint, a.place.as<int32_t>(), b.at, readers});
  }
}

int64_t entries_of(const FastLookup& lookup) { return lookup.weights.numel() / lookup.weights.size(0); }

}  // namespace

void run(Stream& stream, const FastIndexReaders& a) {
  const int64_t entries = a.slots.numel() / a.slots.size(0), all = a.chunk.tokens() * entries;
  auto* const keys = reinterpret_cast<int32_t*>(a.sorted.as<int64_t>());
  int32_t* const scratch = keys + (all + 3) / 4 * 4;
  HEBB_ASSERT((all + 3) / 4 * 16 + sort_scratch_bytes(all) <= a.sorted.bytes());
  const auto none = static_cast<int32_t>(a.table);
  each_element("fast_reader_keys", stream, a.chunk.tokens(), entries,
               GatherSlots{keys, a.slots.as<int32_t>(), a.pairs.targets.as<int32_t>(), a.chunk, entries, none, a.pairs.pairs_only});
  const SortedKeys sorted = sort_keys(stream, keys, all, a.table + 1, scratch);
  const ReaderLists out{a.out.slots.as<int32_t>(), a.out.starts.as<int32_t>(), a.out.readers.as<int32_t>(), a.out.local.as<int32_t>(),
                        a.out.count.as<int32_t>()};
  HEBB_LAUNCH(number_slots_kernel, 1, kScanThreads, 0, stream, out, sorted, a.chunk, entries, all, none);
}

void run(Stream& stream, const FastReadValues& a) {
  const int64_t entries = entries_of(a.lookup), width = a.values.size(1);
  dispatch_float(a.vh.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("fast_read", stream, a.chunk.tokens(), width,
                 Read<T>{a.vh.as<T>(), a.lookup.slots.as<int32_t>(), a.lookup.weights.as<float>(), a.values.as<float>(), a.chunk, entries,
                         width});
  });
}

void run(Stream& stream, const FastKeepRows& a) {
  const Readers readers(a.readers);
  each_element("fast_keep", stream, readers.capacity, a.values.size(1),
               Keep{a.rows.as<float>(), a.values.as<float>(), readers, a.values.size(1), a.restore});
}

void run(Stream& stream, const FastWriteValues& a) {
  const int64_t width = a.values.size(1), entries = entries_of(a.lookup);
  dispatch_float(a.vh.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Pairs<T> pairs(a.pairs);
    const Readers readers(a.readers);
    each_element("fast_error", stream, a.chunk.tokens(), width, Error<T>{a.error.as<float>(), a.vh.as<T>(), pairs, a.chunk, width});
    sum_readers("fast_write", stream, readers, width,
                WriteSum{{a.lookup.weights.as<float>(), a.error.as<float>(), pairs.targets, a.chunk, entries, width},
                         a.values.as<float>(), readers, static_cast<float>(a.step)});
  });
}

void run(Stream& stream, const FastMeasureStep& a) {
  auto* const partial = static_cast<double*>(workspace(stream).data);
  dispatch_float(a.vh.dtype, [&](auto zero) {
    using T = decltype(zero);
    HEBB_LAUNCH(measure_kernel<T>, kMeasureBlocks, kEachThreads, 0, stream, partial, a.values.as<float>(), a.rows.as<float>(),
                a.vh.as<T>(), Pairs<T>(a.pairs), Readers(a.readers), a.chunk, a.chunk.tokens(), a.values.size(1));
  });
  each_warp("fast_measures", stream, 2, AddMeasures{a.sums.as<double>(), partial});
}

void run(Stream& stream, const FastValuesBackward& a) {
  dispatch_float(a.vh.dtype, [&](auto zero) { values_backward<decltype(zero)>(stream, a); });
}

}  // namespace hebb::HEBB_DEVICE
