#include "kernels/fwpkm/scratch.h"
#include "kernels/fwpkm/slot_gradient_sums.cuh"

// Gradients of a chunk's readings and of the step of its values, from the last chunk to the first, in two launches
// each: what a token reads and writes, by one block, and the adjoints of the slots that it read. Each slot of the next
// adjoint is read twice, the second time from L1. 8 E dv FLOPs a token; bound: HBM, of each entry the old slot, the
// next adjoint and half an update of it.
namespace hebb::HEBB_DEVICE {
namespace {

/// See FwpkmValuesBackward.
template <class T> struct FwpkmValuesBackwardTask {
  const T *d_out, *vh;
  T *d_v, *d_w;
  const float *before, *values, *weights;  // before: of the chunk
  float *d_weights, *adjoint, *d_vh;
  const int32_t *slots, *place;
  Pairs<T> pairs;
  Readers readers;
  FastChunk chunk;
  int64_t entries, width,
      last_row;  // last_row: of the chunk, + 1: a slot whose place is behind it is read by a later chunk
  float step;
  bool by_slot, through;  // by_slot: the adjoint has a row for each slot, else for each place

  __device__ int64_t target(int64_t token) const { return through ? pairs.targets[token] : -1; }
  __device__ float* adjoint_of(int64_t slot) const { return adjoint + (by_slot ? slot : place[slot] - 1) * width; }
  __device__ bool is_read_later(int64_t slot) const { return place[slot] > last_row; }
  /// Gradient of what the update made of the row of entry g; null where no later chunk read it.
  __device__ const float* d_next(int64_t g) const { return is_read_later(slots[g]) ? adjoint_of(slots[g]) : nullptr; }
  /// Step over the number of readers.
  __device__ float share(int64_t g) const {
    const int32_t* const starts = readers.starts + readers.local[g];
    return step / static_cast<float>(starts[1] - starts[0]);
  }
  __device__ const float* old_row(int64_t g) const {
    return before != nullptr ? before + readers.local[g] * width : values + slots[g] * width;
  }
};

/// What an entry adds to the gradient at its token's reading.
struct Term {
  const float* d;  // null: nothing
  float factor;
};

/// d_weights = step / n <d_next, v - vh>, to be weighed with w, and the term, of one entry by one warp.
template <class T>
__device__ __forceinline__ void inner(const FwpkmValuesBackwardTask<T>& b, int64_t token, int64_t target, int64_t g,
                                      Term& term, int lane) {
  const float* const d = b.d_next(g);
  float sum = 0;
  for (int64_t c = lane; c < b.width && d != nullptr; c += 32) {
    sum += d[c] * (to_float(b.pairs.v[target * b.width + c]) - to_float(b.vh[token * b.width + c]));
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    const float share = d != nullptr ? b.share(g) : 0.0f;
    b.d_weights[g] = share * sum;
    term = {d, b.weights[g] * share};
  }
}

/// d_vh, and d_v of the target, of a column. terms: of the token's entries.
template <class T>
__device__ __forceinline__ void reading_gradient(const FwpkmValuesBackwardTask<T>& b, const Term* terms, int64_t r,
                                                 int64_t token, int64_t target, int64_t c) {
  float push = 0;
  HEBB_UNROLL_BY(4)  // loads on their way
  for (int64_t i = 0; i < (target >= 0 ? b.entries : 0); ++i) {
    const Term term = terms[i];
    push += term.d != nullptr ? term.factor * term.d[c] : 0.0f;
  }
  push *= target >= 0 ? b.pairs.weight(token) : 0.0f;
  b.d_vh[r * b.width + c] = to_float(b.d_out[token * b.width + c]) - push;
  if (target >= 0) { write(b.d_v[target * b.width + c], push, true); }
}

/// d_w, before d_weights is complete, by one warp.
template <class T>
__device__ __forceinline__ void write_weight_gradient(const FwpkmValuesBackwardTask<T>& b, int64_t token, int lane) {
  float sum = 0;
  for (int64_t g = token * b.entries + lane; g < (token + 1) * b.entries; g += 32) {
    sum += b.weights[g] * b.d_weights[g];
  }
  sum = warp_sum(sum);
  if (lane == 0) { write(b.d_w[token], sum, true); }
}

/// The rest of d_weights of one entry, by one warp.
template <class T>
__device__ __forceinline__ void slot_weight_gradient(const FwpkmValuesBackwardTask<T>& b, int64_t r, int64_t token,
                                                     int64_t target, int64_t g, int lane) {
  const float *const old = b.old_row(g), *const d_vh = b.d_vh + r * b.width;
  float sum = 0;
  for (int64_t c = lane; c < b.width; c += 32) { sum += old[c] * d_vh[c]; }
  sum = warp_sum(sum);
  if (lane == 0) { b.d_weights[g] = (target >= 0 ? b.pairs.weight(token) * b.d_weights[g] : 0.0f) + sum; }
}

/// Grid: tokens of the chunk. Shared: a term for each entry, found once and not by each thread: five loads that wait
/// for each other lead to it.
template <class T>
__global__ void __launch_bounds__(kEachThreads) fwpkm_token_backward_kernel(FwpkmValuesBackwardTask<T> b) {
  HEBB_DYN_SHARED(raw);
  auto* const terms = reinterpret_cast<Term*>(raw);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t r = blockIdx.x, token = token_of(b.chunk, r), target = b.target(token);
  const int64_t first = token * b.entries, end = first + b.entries;
  if (target >= 0) {
    for (int64_t g = first + warp; g < end; g += kEachThreads / 32) {
      inner(b, token, target, g, terms[g - first], lane);
    }
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < b.width; c += kEachThreads) { reading_gradient(b, terms, r, token, target, c); }
  __syncthreads();
  if (warp == 0 && target >= 0 && b.d_w != nullptr) { write_weight_gradient(b, token, lane); }
  __syncthreads();
  for (int64_t g = first + warp; g < end; g += kEachThreads / 32) {
    slot_weight_gradient(b, r, token, target, g, lane);
  }
}

template <class T> struct AdjointSum : WeightedRows {
  FwpkmValuesBackwardTask<T> b;

  struct AdjointEntry {
    float *to, before;
    bool is_read_later;
  };
  __device__ __forceinline__ AdjointEntry begin(int64_t u, int64_t c) const {
    const int64_t slot = b.readers.slots[u];
    float* const to = b.adjoint_of(slot) + c;
    const bool later = b.is_read_later(slot);
    return {to, later ? *to : 0.0f, later};
  }
  __device__ __forceinline__ void finish(const AdjointEntry& at, int64_t, int64_t, int32_t, float sum) const {
    *at.to = at.is_read_later ? at.before + sum : sum;
  }
};

/// place[slot] = 1 + the row of the last chunk that reads it, whatever the order of the chunks. Row: chunk; column:
/// slot of the chunk.
struct FindPlaces {
  int32_t* place;
  const int32_t *slots, *count;
  int64_t most;

  __device__ void operator()(int64_t c, int64_t u) const {
    if (u < count[c]) { atomicMax(&place[slots[c * most + u]], static_cast<int32_t>(c * most + u + 1)); }
  }
};

template <class T>
void values_backward(Stream& stream, const FwpkmValuesBackward& a, const FwpkmValuesBackwardScratch& scratch) {
  const int64_t width = a.values.size(1), table = a.values.size(0),
                entries = a.lookup.weights.numel() / a.lookup.weights.size(0);
  const int64_t most = fwpkm_capacity(a.chunks.all.batch * a.chunks.size * entries, table);
  if (a.through) {
    zero_bytes(stream, scratch.place.data, scratch.place.bytes());
    each_element(
        "fwpkm_find_places", stream, a.chunks.count(), most,
        FindPlaces{scratch.place.as<int32_t>(), a.readers.slots.as<int32_t>(), a.readers.count.as<int32_t>(), most});
  }
  for (int64_t c = a.chunks.count() - 1; c >= 0; --c) {
    const FastChunk chunk = a.chunks.at(c);
    const Readers readers(readers_of(a.readers, a.chunks, c, entries, table));
    const FwpkmValuesBackwardTask<T> b{a.d_out.as<T>(),
                                       a.vh.as<T>(),
                                       a.d_v.as<T>(),
                                       a.d_w.as<T>(),
                                       a.before.defined() ? a.before.as<float>() + c * most * width : nullptr,
                                       a.values.as<float>(),
                                       a.lookup.weights.as<float>(),
                                       a.d_weights.as<float>(),
                                       scratch.adjoint.as<float>(),
                                       scratch.d_vh.as<float>(),
                                       a.lookup.slots.as<int32_t>(),
                                       scratch.place.as<int32_t>(),
                                       Pairs<T>(a.pairs),
                                       readers,
                                       chunk,
                                       entries,
                                       width,
                                       (c + 1) * most,
                                       static_cast<float>(a.step),
                                       a.through && scratch.adjoint.size(0) == table,
                                       a.through};
    HEBB_LAUNCH(fwpkm_token_backward_kernel<T>, blocks_for(chunk.tokens(), 1), kEachThreads,
                entries * static_cast<int64_t>(sizeof(Term)), stream, b);
    if (a.through && c > 0) {
      sum_readers("fwpkm_adjoint", stream, readers, width,
                  AdjointSum<T>{{b.weights, b.d_vh, nullptr, chunk, entries, width}, b});
    }
  }
}

}  // namespace

void run(Stream& stream, const FwpkmValuesBackward& a, const FwpkmValuesBackwardScratch& scratch) {
  dispatch_float(a.d_out.dtype, [&]<class S>(S) { values_backward<S>(stream, a, scratch); });
}

}  // namespace hebb::HEBB_DEVICE
