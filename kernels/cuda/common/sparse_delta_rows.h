#pragma once
// Rows of a sparse delta memory as one block sees them: one row of the batch, one head, 64 channels. A lane holds channels `lane` and
// `lane + 32` of the slice; the warps share the slots of a token, `kHeld` of them in flight each.
#include "kernels/cuda/common/prefetch.h"
#include "kernels/cuda/common/split.h"
#include "kernels/sparse_delta.h"

namespace hebb::HEBB_DEVICE::sparse_delta {

constexpr int kHeld = 4;
constexpr int kMaxWarps = 16;
static_assert(kSparseDeltaSlice == 64);

/// What forward and backward share; see SparseDeltaInputs. Memories are [B, H, slots, dim].
template <class T>
struct Inputs {
  const float *write_weights, *read_weights, *decay, *beta, *memory;
  const T* v;
  const int32_t *write_slots, *read_slots, *write_rows, *read_rows, *touched;
  const SparseDeltaSequence* sequences;
  float *table, *state;
  int64_t tokens, heads, dim, slots, writes, reads, sequence_count, slices;
  bool decays_by_key;

  __device__ float decay_of(int64_t at, int64_t n) const { return decays_by_key ? decay[at * writes + n] : decay[at]; }
};

template <class T>
Inputs<T> inputs_of(const SparseDeltaInputs& in, const Tensor& state) {
  const Tensor& memories = in.table.defined() ? in.table : state;
  const int64_t tokens = in.v.size(0), heads = in.v.size(1);
  return {.write_weights = in.write_weights.as<float>(), .read_weights = in.read_weights.as<float>(), .decay = in.decay.as<float>(),
          .beta = in.beta.as<float>(), .memory = in.memory.as<float>(), .v = in.v.as<T>(),
          .write_slots = in.write_slots.as<int32_t>(), .read_slots = in.read_slots.as<int32_t>(),
          .write_rows = in.write_rows.as<int32_t>(), .read_rows = in.read_rows.as<int32_t>(), .touched = in.touched.as<int32_t>(),
          .sequences = reinterpret_cast<const SparseDeltaSequence*>(in.sequences.as<int32_t>()), .table = in.table.as<float>(),
          .state = state.as<float>(), .tokens = tokens, .heads = heads, .dim = in.v.size(2), .slots = memories.size(2),
          .writes = in.write_weights.size(2), .reads = in.read_weights.size(2), .sequence_count = in.sequences.size(0),
          .slices = (in.v.size(2) + kSparseDeltaSlice - 1) / kSparseDeltaSlice, .decays_by_key = in.decays_by_key()};
}

/// Warps that share a token's slots.
inline unsigned threads_for(int64_t writes, int64_t reads) {
  const int64_t most = writes > reads ? writes : reads, warps = (most + kHeld - 1) / kHeld;
  return static_cast<unsigned>(32 * (warps < kMaxWarps ? warps : kMaxWarps));
}

/// First of the sequences (ascending) that does not lie before `row` of the batch.
__device__ __forceinline__ int64_t first_sequence(const SparseDeltaSequence* sequences, int64_t count, int64_t row) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sequences[middle].row < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The two channels of a lane.
struct Pair {
  float x[2];

  __device__ __forceinline__ void add(float w, const Pair& o) {
    x[0] += w * o.x[0];
    x[1] += w * o.x[1];
  }
  __device__ __forceinline__ void scale(float w) {
    x[0] *= w;
    x[1] *= w;
  }
  __device__ __forceinline__ float dot(const Pair& o HEBB_WHERE_PARAMETER) const {
    return warp_sum(x[0] * o.x[0] + x[1] * o.x[1] HEBB_WHERE_ARGUMENT);
  }
};

/// The block's place and the thread's part of it.
struct Place {
  int64_t row, head, slice, channel;  // channel: the lane's first
  int lane, warp, warps;
  bool has[2];

  template <class T>
  __device__ explicit Place(const Inputs<T>& in)
      : lane(static_cast<int>(threadIdx.x % 32)), warp(static_cast<int>(threadIdx.x / 32)), warps(static_cast<int>(blockDim.x / 32)) {
    const Split stream(blockIdx.x, in.slices), head_of_row(stream.quotient, in.heads);
    row = head_of_row.quotient;
    head = head_of_row.remainder;
    slice = stream.remainder;
    channel = slice * kSparseDeltaSlice + lane;
    has[0] = channel < in.dim;
    has[1] = channel + 32 < in.dim;
  }
  /// `values` points to the first channel of a row.
  template <class T>
  __device__ __forceinline__ Pair load(const T* values) const {
    return {{has[0] ? to_float(values[channel]) : 0.0f, has[1] ? to_float(values[channel + 32]) : 0.0f}};
  }
  template <class T>
  __device__ __forceinline__ void store(T* values, const Pair& p, bool accumulate) const {
    if (has[0]) {
      write(values[channel], p.x[0], accumulate);
    }
    if (has[1]) {
      write(values[channel + 32], p.x[1], accumulate);
    }
  }
};

/// The rows of M of one sequence and head.
struct Memory {
  float* rows;
  const float* initial;  // null: zeros
  int64_t dim;

  template <class T>
  __device__ Memory(const Inputs<T>& in, const Place& at, bool carried)
      : rows((carried ? in.state : in.table) + (at.row * in.heads + at.head) * in.slots * in.dim),
        initial(in.memory == nullptr ? nullptr : in.memory + at.head * in.slots * in.dim), dim(in.dim) {}

  __device__ __forceinline__ float* row(int32_t code) const { return rows + static_cast<int64_t>(code >= 0 ? code : ~code) * dim; }
  __device__ __forceinline__ Pair load(const Place& at, int32_t code) const {
    if (code < 0 && initial == nullptr) {
      return {};
    }
    return at.load(code >= 0 ? row(code) : initial + static_cast<int64_t>(~code) * dim);
  }
};

constexpr int32_t kNone = INT32_MIN;  // below the codes of all slots

/// Rows of the token that comes next, one a thread, on their way into L2 while this token is computed. Codes are read when the object is
/// made and needed when fetch() is called.
struct Ahead {
  int32_t code = kNone;

  /// writes, reads: codes of that token.
  template <class T>
  __device__ Ahead(const Inputs<T>& in, bool exists, const int32_t* writes, const int32_t* reads) {
    if (exists && threadIdx.x < in.writes + in.reads) {
      code = threadIdx.x < in.writes ? writes[threadIdx.x] : reads[threadIdx.x - in.writes];
    }
  }
  __device__ __forceinline__ void fetch(const Memory& memory, const Place& at) const {
    if (code >= 0 || (code != kNone && memory.initial != nullptr)) {
      const int64_t first = at.slice * kSparseDeltaSlice;
      const float* const line = (code >= 0 ? memory.row(code) : memory.initial + static_cast<int64_t>(~code) * memory.dim) + first;
      prefetch_line(line);
      prefetch_line(first + 32 < memory.dim ? line + 32 : line);
    }
  }
};

/// f(i, j) for entries i < count of a token in groups of kHeld: warp w takes the groups w, w + warps, ...; j < kHeld is the place in the
/// group. `load` runs for a whole group before `use` does, so that kHeld rows are under way together.
template <class Load, class Use>
__device__ __forceinline__ void share(const Place& at, int64_t count, Load&& load, Use&& use) {
  const int entries = static_cast<int>(count);
  for (int first = at.warp * kHeld; first < entries; first += at.warps * kHeld) {
    HEBB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      if (first + j < entries) {
        load(first + j, j);
      }
    }
    HEBB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      if (first + j < entries) {
        use(first + j, j);
      }
    }
  }
}

/// Partial sums of the warps, one pair of channels a lane.
using Partial = float[kMaxWarps][kSparseDeltaSlice];

__device__ __forceinline__ void put(Partial& partial, const Place& at, const Pair& sum) {
  partial[at.warp][at.lane] = sum.x[0];
  partial[at.warp][at.lane + 32] = sum.x[1];
}

/// The sum over the warps, in their order; every thread may ask for it after a barrier.
__device__ __forceinline__ Pair total(const Partial& partial, const Place& at) {
  Pair sum{};
  for (int w = 0; w < at.warps; ++w) {
    sum.x[0] += partial[w][at.lane];
    sum.x[1] += partial[w][at.lane + 32];
  }
  return sum;
}

}  // namespace hebb::HEBB_DEVICE::sparse_delta
