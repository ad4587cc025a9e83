#pragma once
// Attention to the slots of a dictionary that changes from chunk to chunk (docs/layers/ovq.md, vq.md and kvm.md). The
// host launches step by step. In a step each row of the batch has at most one chunk that reads the dictionary and one
// that is folded in. So launches are the only order between chunks, and slots stay in place. Where old versions of
// changed slots are kept, tensor cores read many steps at once, after the last of them. The attention kernels go first
// for all chunks: they do what a chunk sees of the tokens themselves. Slots are merged into their result by
// log-sum-exp.
//
// In bf16 and with the usual head sizes tensor cores do it (slot_attention_mma.cu, slot_attention_mma_backward.cu),
// otherwise the plain cores (slot_attention.cu). FLOPs: 2 H (D + Dv) a query and slot, backward 7 products of D or Dv.
// Where the tiles of a chunk's queries do not fill the device, the slots are divided among several blocks, whose parts
// of the softmax a second kernel joins.
#include <algorithm>

#include "kernels/attention/tile.cuh"
#include "kernels/dictionary/parts.h"

namespace hebb::HEBB_DEVICE::slots {

using namespace attention;  // tiles

constexpr int32_t kNone = INT32_MIN;
static_assert(kDictionaryTile == kTile && kDictionarySlice == 16 * kMaxColumns);

/// One step of one row of the batch. Tokens count from the row's first; those of an earlier segment are negative.
struct Step {
  int32_t read = kNone, slots = 0;  // first token of the chunk that reads, and how many slots it sees
  int32_t fold = kNone, before = 0,
          after = 0;  // first token of the chunk whose entry or end changes the slots, and how many there are
};

static_assert(sizeof(Step) == 4 * kStepWords);

/// Calls f(t) for the chunk starts of a row in step s, each on one lane of a warp.
template <class F>
__device__ __forceinline__ void each_chunk_start(const int32_t* doc_start, int64_t length, int64_t chunk, int64_t s,
                                                 int lane, F&& f) {
  for (int64_t t = (s - 1) * chunk + 1 + lane; t <= s * chunk && t < length; t += 32) {
    const int64_t begin = doc_start[t < 0 ? 0 : t];
    if (begin <= t && (t - begin) % chunk == 0) { f(t, begin); }
  }
}

/// Calls f(i), in order, for the places i >= first of ids [count] that hold `id`. All lanes of a warp.
template <class F>
__device__ __forceinline__ void each_member(const int32_t* ids, int64_t count, int64_t first, int32_t id, int lane,
                                            F&& f) {
  for (int64_t base = first; base < count; base += 32) {
    const bool is_member = base + lane < count && ids[base + lane] == id;
    for (unsigned left = __ballot_sync(kAllLanes, is_member); left != 0; left &= left - 1) {
      f(base + __ffs(static_cast<int>(left)) - 1);
    }
  }
}

/// Whether ids [0, at) hold `id`. All lanes of a warp.
__device__ __forceinline__ bool is_among(const int32_t* ids, int64_t at, int32_t id, int lane) {
  for (int64_t base = 0; base < at; base += 32) {
    if (__ballot_sync(kAllLanes, base + lane < at && ids[base + lane] == id) != 0) { return true; }
  }
  return false;
}

/// What the queries and the plan of a pass are, on the device.
struct ReadLayout {
  const int32_t* doc_start;  // [B, T]
  const Step* steps;         // [B, count]
  int64_t length, chunk, count;
  int heads, kv_heads, d, dv;

  __device__ int group() const { return heads / kv_heads; }
  __device__ Step at(int64_t row, int64_t step) const { return steps[row * count + step]; }
  int64_t units(int64_t batch) const { return batch * kv_heads; }
  /// Most stacked queries of a chunk, and their tiles.
  constexpr int64_t queries() const { return (chunk < length ? chunk : length) * (heads / kv_heads); }
  constexpr int64_t query_tiles() const { return (queries() + kTile - 1) / kTile; }
};

/// A block's unit (row and kv head) and the chunk that reads in this step.
struct UnitChunk {
  int64_t row, unit, first, begin;  // first: of the chunk's tokens in this pass; begin: of the document
  int head;
  Step step;

  __device__ UnitChunk(const ReadLayout& n, int64_t unit, int64_t step_number)
      : row(unit / n.kv_heads), unit(unit), head(static_cast<int>(unit % n.kv_heads)), step(n.at(row, step_number)) {
    first = step.read < 0 ? 0 : step.read;
    begin = n.doc_start[row * n.length + first];
  }
  __device__ bool reads() const { return step.read != kNone; }
  /// Line of stacked query r of the chunk; -1: there is none.
  __device__ int64_t line(const ReadLayout& n, int64_t r) const {
    const int64_t t = first + r / n.group();
    const bool exists = t < n.length && t < step.read + n.chunk && n.doc_start[row * n.length + t] == begin;
    return exists ? (row * n.length + t) * n.heads + head * n.group() + r % n.group() : -1;
  }
};

__device__ __forceinline__ void load_queries(Shared& s, const ReadLayout& n, const UnitChunk& at, int64_t first) {
  if (threadIdx.x < kTile) { s.row_line[threadIdx.x] = at.line(n, first + threadIdx.x); }
}

/// Keys, shared by the batch ([K, R, D]) or not ([B, K, R, D]); values [B, K, R, Dv]; bias [B, K, R] or null.
template <class T> struct Slots {
  const T *keys, *values;
  const float* bias;
  int64_t room;
  bool shared_keys = false;
};

/// Keys and values of tokens before this pass as a ring [B, K, size, D] by position; a chunk sees its own and `window`
/// - 1 before it.
template <class T> struct Ring {
  const T *k = nullptr, *v = nullptr;
  int64_t size = 0, window = 1;

  /// Of what the chunk at `at` sees: position in the document of the first token, and how many tokens are of earlier
  /// passes.
  __device__ int64_t first(const ReadLayout& n, const UnitChunk& at) const {
    const int64_t oldest = ((at.step.read - at.begin) / n.chunk - window + 1) * n.chunk;
    return oldest > 0 ? oldest : 0;
  }
  __device__ int64_t earlier(const ReadLayout& n, const UnitChunk& at) const {
    return k == nullptr ? 0 : -at.begin - first(n, at);
  }
};

/// Slots as they were before steps of a group changed them (tensor cores only), so that all steps of the group can be
/// read when the last one is done: slot r of a unit in step s is in version table[unit, s mod group, r], or where it
/// always is if that is -1. No table: all slots are.
struct OldSlots {
  const int32_t* table = nullptr;                 // [B, K, group, R]
  const bf16 *keys = nullptr, *values = nullptr;  // [B, K, versions, D], [B, K, versions, Dv]
  const float* bias = nullptr;                    // [B, K, versions], or null
  int64_t versions = 0, group = 1;
};

/// Of the table of OldSlots.
__device__ __forceinline__ int32_t* version_entry(int32_t* table, int64_t unit, int64_t step, int64_t group,
                                                  int64_t room, int64_t slot) {
  return table + (unit * group + step % group) * room + slot;
}

/// A step's entry is the version that keeps a slot where the step changed it, else -1. It becomes the version that the
/// step reads: the slot before the step's own change, or after it (reads_after). Item: unit, slot.
struct ResolveVersions {
  int32_t* table;
  int64_t group, steps, room;
  bool reads_after;

  __device__ void operator()(int64_t unit, int64_t slot) const {
    int32_t latest = -1;
    for (int64_t step = steps - 1; step >= 0; --step) {
      int32_t& entry = *version_entry(table, unit, step, group, room, slot);
      const int32_t own = entry >= 0 ? entry : latest;
      entry = reads_after ? latest : own;
      latest = own;
    }
  }
};

/// The unit and step of the blocks with one number: the steps of a unit, which read nearly the same slots, are
/// neighbours.
struct Steps {
  int64_t first = 0, count = 1;

  __device__ int64_t unit(int64_t number) const { return number / count; }
  __device__ int64_t step(int64_t number) const { return first + number % count; }
};

/// A dictionary's parts, of whole tiles of slots: sums [parts, B K steps, queries, width], then maximum and sum of each
/// [parts, B K steps, queries, 2] (forward only). The unit of a step has a number (Steps).
struct DictionaryParts {
  float* memory = nullptr;
  int64_t count = 1, units = 0;

  /// Tiles of slots in a part.
  __device__ int64_t tiles(int64_t slots) const { return ((slots + kTile - 1) / kTile + count - 1) / count; }
  __device__ int64_t line(const ReadLayout& n, int64_t part, int64_t unit, int64_t query) const {
    return (part * units + unit) * n.queries() + query;
  }
  __device__ float* sums(int64_t line, int width) const { return memory + line * width; }
  __device__ float* statistics(const ReadLayout& n, int64_t line) const {
    return memory + count * units * n.queries() * n.dv + 2 * line;
  }
  /// Calls f(line of the part) for the parts that hold some of `slots` slots, and for the first.
  template <class F>
  __device__ void each(const ReadLayout& n, int64_t slots, int64_t unit, int64_t query, F&& f) const {
    const int64_t width = tiles(slots) * kTile;
    for (int64_t part = 0; part < count && (part == 0 || part * width < slots); ++part) {
      f(line(n, part, unit, query));
    }
  }
};

/// Reads the slots: o holds the attention to tokens, own_lse its log-sum-exp.
template <class T> struct SlotRead {
  ReadLayout n;
  Slots<T> slots;
  Ring<T> ring = {};
  const T* q;
  T* o;
  float* lse;
  const float *own_lse, *slot_temp = nullptr, *ring_temp = nullptr;  // temperatures [H], or null
  float scale;
  Steps steps = {};  // one, but for tensor cores
  DictionaryParts parts = {};
  bool on_tensor_cores = false;
  OldSlots old = {};
};

template <class T> struct SlotReadBackward {
  ReadLayout n;
  Slots<T> slots;
  const T *q, *d_o, *o;
  const float *lse, *slot_temp = nullptr;
  T* d_q;                      // added to
  float *d_keys, *d_values;    // [B, K, R, D], [B, K, R, Dv]: added to
  float* temp_sums = nullptr;  // [slices, B, T, H]: of q . d_q / temperature, or null
  int64_t queries;             // B T H
  float scale;
  Steps steps = {};  // one, but for tensor cores
  const float* statistics =
      nullptr;                 // of the attention to tokens on tensor cores (kernels/attention/attention.h), or null
  DictionaryParts parts = {};  // of the slots that a query's gradient is summed over; on tensor cores only
  OldSlots old = {};
};

/// Steps of all rows of the batch, T float or bf16.
template <class T> void read_slots(Stream& stream, int64_t batch, const SlotRead<T>& a);
template <class T> void read_slots_backward(Stream& stream, int64_t batch, const SlotReadBackward<T>& a);

/// The same on tensor cores.
void read_slots_mma(Stream& stream, int64_t batch, const SlotRead<bf16>& a);
/// Reverse scan over the steps: before the gradients of a step's readout, undo takes back what the step did to the
/// slots.
template <class Undo>
void read_slots_backward_mma(Stream& stream, int64_t batch, const SlotReadBackward<bf16>& a, const Undo& undo);

/// Of a dictionary that somebody else scans in reverse.
struct NoUndo {
  static constexpr bool kUndoes = false;
};

/// scratch: of plan_dictionary_parts(...).
inline DictionaryParts parts_of(const ReadLayout& n, int64_t batch, int64_t steps, const Tensor& scratch) {
  return {scratch.as<float>(), scratch.defined() ? scratch.size(0) : 1, n.units(batch) * steps};
}

/// Scratch as numbers or structs of whole words; null if it is undefined.
template <class X> X* items_of(const Tensor& scratch) {
  HEBB_ASSERT(!scratch.defined() || scratch.bytes() % static_cast<int64_t>(sizeof(X)) == 0);
  return static_cast<X*>(scratch.data);
}

template <class Args> ReadLayout layout_of(const Args& a, int64_t chunk, const Step* steps, int64_t count) {
  return {.doc_start = a.doc_start.template as<int32_t>(),
          .steps = steps,
          .length = a.q.size(1),
          .chunk = chunk,
          .count = count,
          .heads = static_cast<int>(a.q.size(2)),
          .kv_heads = static_cast<int>(a.v.size(2)),
          .d = static_cast<int>(a.q.size(3)),
          .dv = static_cast<int>(a.v.size(3))};
}

struct CopyFloats {
  float* to;
  const float* from;
  __device__ void operator()(int64_t, int64_t i) const { to[i] = from[i]; }
};

template <class X> struct Fill {
  X *to, value;
  __device__ void operator()(int64_t, int64_t i) const { to[i] = value; }
};

template <class X> void fill(Stream& stream, X* to, int64_t count, X value) {
  each_element("fill", stream, 1, count, Fill<X>{to, value});
}

}  // namespace hebb::HEBB_DEVICE::slots
