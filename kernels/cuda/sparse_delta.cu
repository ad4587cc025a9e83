#include <algorithm>

#include "kernels/cuda/common/sort.h"
#include "kernels/cuda/common/sparse_delta_rows.h"

// One block a row of the batch, head and 64 channels walks over the row's tokens; its warps share the slots of a token. Channels are
// independent, so blocks never meet, and the slots of a token are distinct, so warps do not either. FLOPs: H D (4 W + 2 R) a token.
// HBM: 2 W + R rows of D floats a token and head where the table exceeds L2. A token waits for two rounds of loads, from L2 since the
// token before asked for them, and for three barriers: that latency bounds a block; B H D / 64 blocks run side by side.
// The index is a radix sort of all (slot, time) of a row and head: HBM, about 70 bytes a slot and token.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace sparse_delta;

template <class T>
__global__ void __launch_bounds__(32 * kMaxWarps) sparse_delta_forward_kernel(T* y, float* error, Inputs<T> in) {
  HEBB_SHARED(Partial, old);
  HEBB_SHARED(Partial, readings);
  const Place at(in);
  for (int64_t s = first_sequence(in.sequences, in.sequence_count, at.row); s < in.sequence_count; ++s) {
    const SparseDeltaSequence sequence = in.sequences[s];
    if (sequence.row != at.row) {
      break;
    }
    const bool carried = sequence.carried != 0;
    const Memory memory(in, at, carried);
    const int32_t *const write_codes = carried ? in.write_slots : in.write_rows, *const read_codes = carried ? in.read_slots : in.read_rows;
    const int64_t end = int64_t{sequence.first} + sequence.length;
    for (int64_t t = sequence.first; t < end; ++t) {
      const int64_t token = t * in.heads + at.head;
      const int32_t *const writes = write_codes + token * in.writes, *const reads = read_codes + token * in.reads;
      const float *const k = in.write_weights + token * in.writes, *const q = in.read_weights + token * in.reads;
      const Ahead ahead(in, t + 1 < end, writes + in.heads * in.writes, reads + in.heads * in.reads);
      Pair held[kHeld]{}, sum{};
      share(at, in.writes, [&](int n, int j) { held[j] = memory.load(at, writes[n]); },
            [&](int n, int j) { sum.add(-k[n] * in.decay_of(token, n), held[j]); });
      put(old, at, sum);
      ahead.fetch(memory, at);
      __syncthreads();
      Pair e = total(old, at);
      e.add(1.0f, at.load(in.v + token * in.dim));
      if (error != nullptr && at.warp == 0) {
        at.store(error + token * in.dim, e, false);
      }
      e.scale(in.beta[token]);
      share(at, in.writes, [&](int n, int j) { held[j] = memory.load(at, writes[n]); },
            [&](int n, int j) {
              held[j].scale(in.decay_of(token, n));
              held[j].add(k[n], e);
              at.store(memory.row(writes[n]), held[j], false);
            });
      __syncthreads();
      sum = {};
      share(at, in.reads, [&](int n, int j) { held[j] = memory.load(at, reads[n]); },
            [&](int n, int j) { sum.add(q[n], held[j]); });
      put(readings, at, sum);
      __syncthreads();
      if (at.warp == 0) {
        at.store(y + token * in.dim, total(readings, at), false);
      }
    }
  }
}

/// The slots of rows and heads [first, first + count) by the order in time: entry i of a token is write i or read i - W.
struct Entries {
  const int32_t *write_slots, *read_slots;
  int64_t length, heads, writes, reads, slots, first;

  __device__ int64_t width() const { return writes + reads; }
  __device__ int64_t per_stream() const { return length * width(); }
  /// token * heads + head of a token of a stream (row and head).
  __device__ int64_t token(int64_t stream, int64_t t) const {
    const Split at(stream, heads);
    return (at.quotient * length + t) * heads + at.remainder;
  }
  /// Token of a row's stream and entry of the token.
  __device__ Split split(int64_t e) const { return {e, width()}; }
  __device__ int32_t slot(int64_t token, int64_t i) const {
    return i < writes ? write_slots[token * writes + i] : read_slots[token * reads + i - writes];
  }
};

/// Where the codes of a stream's entries go.
struct Codes {
  int32_t *write_rows, *read_rows;

  __device__ int32_t& at(const Entries& in, int64_t token, int64_t i) const {
    return i < in.writes ? write_rows[token * in.writes + i] : read_rows[token * in.reads + i - in.writes];
  }
};

/// Keys for the sort, and the codes of slots that were written before. Row: token of a stream, column: entry of the token.
struct GatherKeys {
  int32_t* keys;
  Codes codes;
  Entries in;

  __device__ void operator()(int64_t row, int64_t i) const {
    const Split at(row, in.length);
    const int64_t token = in.token(in.first + at.quotient, at.remainder);
    const int32_t slot = in.slot(token, i);
    keys[row * in.width() + i] = static_cast<int32_t>(at.quotient * in.slots + slot);
    codes.at(in, token, i) = slot;
  }
};

/// Everything else from the sorted entries. A thread whose entry is the first use of a slot in a sequence walks on to the first write:
/// until then M is that of `memory`. (The longest walk is that of a slot which all tokens read and none writes.)
struct NumberSlots {
  Codes codes;
  int32_t *touched, *order;
  const int32_t *keys, *positions;
  const SparseDeltaSequence* sequences;
  Entries in;
  int64_t sequence_count;

  /// The last sequence that begins at `token` or before.
  __device__ SparseDeltaSequence sequence_of(int64_t token) const {
    int64_t low = 0, high = sequence_count;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (sequences[middle].first <= token ? low : high) = middle;
    }
    return sequences[low];
  }
  /// Row: token of a stream; row and column only number the sorted entries.
  __device__ void operator()(int64_t row, int64_t column) const {
    const int64_t all = in.per_stream(), local = Split(row, in.length).quotient, begin = local * all, stream = in.first + local;
    const int64_t i = row * in.width() + column, row_begin = Split(stream, in.heads).quotient * in.length;  // first token of the row
    const auto entry_of = [&](int64_t sorted) { return in.split(positions[sorted] - begin); };
    const Split own = entry_of(i);
    const SparseDeltaSequence sequence = sequence_of(row_begin + own.quotient);
    const bool is_first = i == begin || keys[i - 1] != keys[i] || row_begin + entry_of(i - 1).quotient < sequence.first;
    const auto slot = static_cast<int32_t>(keys[i] - local * in.slots);
    order[stream * all + i - begin] = static_cast<int32_t>(positions[i] - begin);
    touched[in.token(stream, own.quotient) * in.width() + own.remainder] = is_first ? slot : -1;
    const int64_t end = int64_t{sequence.first} + sequence.length - row_begin;
    bool written = !is_first;
    for (int64_t next = i; !written && next < begin + all && keys[next] == keys[i] && entry_of(next).quotient < end; ++next) {
      const Split e = entry_of(next);
      codes.at(in, in.token(stream, e.quotient), e.remainder) = ~slot;
      written = e.remainder < in.writes;
    }
  }
};

struct Decay {
  float* decay;
  const float *g, *write_weights;
  int64_t writes;

  __device__ void operator()(int64_t head, int64_t n) const {
    decay[head * writes + n] = expf(write_weights != nullptr ? g[head] * write_weights[head * writes + n] : g[head]);
  }
};

}  // namespace

void run(Stream& stream, const SparseDeltaIndex& a) {
  const int64_t batch = a.order.size(0), heads = a.order.size(1), entries = a.order.size(2), streams = batch * heads;
  const int64_t writes = a.write_slots.size(2), reads = a.read_slots.size(2), length = entries / (writes + reads);
  int64_t at_once = std::clamp<int64_t>(((int64_t{1} << 31) - 1) / a.slots, 1, streams);
  while (at_once > 1 && at_once * entries * 4 + sort_scratch_bytes(at_once * entries) + 16 > a.map.bytes()) {
    --at_once;
  }
  auto* const keys = a.map.as<int32_t>();
  for (int64_t first = 0; first < streams; first += at_once) {
    const int64_t count = std::min(at_once, streams - first), keys_count = count * entries;
    int32_t* const scratch = keys + (keys_count + 3) / 4 * 4;
    HEBB_ASSERT((keys_count + 3) / 4 * 16 + sort_scratch_bytes(keys_count) <= a.map.bytes());
    const Codes codes{a.write_rows.as<int32_t>(), a.read_rows.as<int32_t>()};
    const Entries in{a.write_slots.as<int32_t>(), a.read_slots.as<int32_t>(), length, heads, writes, reads, a.slots, first};
    each_element("sparse_delta_keys", stream, count * length, writes + reads, GatherKeys{keys, codes, in});
    const SortedKeys sorted = sort_keys(stream, keys, keys_count, count * a.slots, scratch);
    each_element("sparse_delta_numbers", stream, count * length, writes + reads,
                 NumberSlots{codes, a.touched.as<int32_t>(), a.order.as<int32_t>(), sorted.keys, sorted.positions,
                             reinterpret_cast<const SparseDeltaSequence*>(a.sequences.as<int32_t>()), in, a.sequences.size(0)});
  }
}

void run(Stream& stream, const SparseDeltaDecay& a) {
  const int64_t heads = a.g.numel();
  each_element("sparse_delta_decay", stream, heads, a.decay.numel() / heads,
               Decay{a.decay.as<float>(), a.g.as<float>(), a.write_weights.as<float>(), a.decay.numel() / heads});
}

void run(Stream& stream, const SparseDeltaForward& a) {
  const int64_t batch = (a.in.table.defined() ? a.in.table : a.state).size(0);
  dispatch_float(a.y.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Inputs<T> in = inputs_of<T>(a.in, a.state);
    HEBB_LAUNCH(sparse_delta_forward_kernel<T>, blocks_for(batch * in.heads * in.slices, 1), threads_for(in.writes, in.reads), 0, stream,
                a.y.as<T>(), a.error.as<float>(), in);
  });
}

}  // namespace hebb::HEBB_DEVICE
