#pragma once
// Slots of a sparse delta memory as one task sees them: one sequence, one head, one slice of channels.
#include <algorithm>
#include <type_traits>

#include "kernels/common/cpu/scratch_parts.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/sparse_delta/codes.h"
#include "kernels/sparse_delta/scratch.h"

namespace hebb::cpu::sparse_delta {

/// Registers of a slice: as many independent chains of multiply-adds as hide their latency.
inline constexpr int kMaxVectors = 8;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Channels of a slice; dtype decides.
inline int64_t slice_of(int64_t dim, DType dtype) {
  const int64_t lanes = kVecBytes / dtype_bytes(dtype), vectors = divide_up(dim, lanes);
  return divide_up(vectors, divide_up(vectors, kMaxVectors)) * lanes;
}

struct SparseDeltaSizes {
  int64_t tokens, heads, dim, slots, writes, reads, sequences, slices, slice;

  explicit SparseDeltaSizes(const SparseDeltaInputs& in)
      : tokens(in.v.size(0)),
        heads(in.v.size(1)),
        dim(in.v.size(2)),
        slots(in.slots),
        writes(in.write_weights.size(2)),
        reads(in.read_weights.size(2)),
        sequences(in.sequences.size(0)),
        slices(divide_up(dim, slice_of(dim, in.v.dtype))),
        slice(slice_of(dim, in.v.dtype)) {}
  int64_t tasks() const { return sequences * heads * slices; }
};

/// NV registers of one slot; `tail` is the number of channels in the last of them.
template <class S, int NV> struct Channels {
  Vec<S> x[NV];

  Channels() = default;
  explicit Channels(S value) {
    for (Vec<S>& v : x) { v = Vec<S>(value); }
  }
  Channels(const S* p, int tail) {
    for (int j = 0; j + 1 < NV; ++j) { x[j] = load(p + j * Vec<S>::width); }
    const S* last = p + (NV - 1) * Vec<S>::width;
    x[NV - 1] = tail == Vec<S>::width ? load(last) : load(last, tail);
  }
  void put(S* p, int tail) const {
    for (int j = 0; j + 1 < NV; ++j) { store(p + j * Vec<S>::width, x[j]); }
    // A masked store, even of all lanes, is not forwarded to the load of a token that follows.
    S* last = p + (NV - 1) * Vec<S>::width;
    tail == Vec<S>::width ? store(last, x[NV - 1]) : store(last, x[NV - 1], tail);
  }
  /// this += w o.
  void add(S w, const Channels& o) {
    for (int j = 0; j < NV; ++j) { x[j] = fma(Vec<S>(w), o.x[j], x[j]); }
  }
  void scale(S w) {
    for (int j = 0; j < NV; ++j) { x[j] *= Vec<S>(w); }
  }
  S dot(const Channels& o) const {
    Vec<S> total = x[0] * o.x[0];
    for (int j = 1; j < NV; ++j) { total = fma(x[j], o.x[j], total); }
    return sum(total);
  }
};

inline const SparseDeltaSequence* sequences(const Tensor& t) {
  HEBB_ASSERT(t.dtype == DType::i32 && t.size(1) == 4);
  return static_cast<const SparseDeltaSequence*>(t.data);
}

/// Workers that have work where every sequence is a row of the batch: dry runs know no other sequences.
inline int64_t workers_of(int64_t batch, int64_t heads, int64_t slices) {
  return std::min<int64_t>(threads(), batch * heads * slices);
}

/// Places of a table: as many as any sequence uses, whatever the documents are.
inline int64_t places_of(const SparseDeltaInputs& in) {
  const int64_t length = in.v.size(0) / in.batch;
  return std::min(in.slots, length * (in.write_slots.size(2) + in.read_slots.size(2)));
}

/// One sequence, one head, one slice of channels.
template <class S> struct Task {
  const SparseDeltaSequence* sequence;
  int64_t head, slice, first_channel;
  int vectors, tail;
  const int32_t *writes, *reads;  // codes, from the first token on; heads * W and heads * R a token
  const int32_t* numbered;        // slots of private places
  int32_t count = 0;              // private places in use
  S* places;                      // private or carried
  int64_t stride;                 // of places
  const S* initial;               // memory of the head
  int64_t initial_stride;

  int64_t first() const { return sequence->first; }
  int64_t end() const { return int64_t{sequence->first} + sequence->length; }
  S* place(int32_t code) const { return places + place_of(code) * stride; }
  const S* value(int32_t code) const {
    return is_written(code) ? places + code * stride : initial + numbered[place_of(code)] * initial_stride;
  }
};

template <class S> inline const S* zeros_of_slice() {
  static const S zeros[kMaxVectors * Vec<S>::width] = {};
  return zeros;
}

template <class S>
Task<S> make_task(const SparseDeltaInputs& in, const SparseDeltaSizes& n, int64_t task, const Tensor& table,
                  int64_t worker, const Tensor& state) {
  Task<S> t;
  const int64_t s = task / (n.heads * n.slices);
  t.sequence = sequences(in.sequences) + s;
  t.head = task / n.slices % n.heads;
  t.slice = task % n.slices;
  t.first_channel = t.slice * n.slice;
  const int64_t width = std::min(n.slice, n.dim - t.first_channel);
  t.vectors = static_cast<int>((width + Vec<S>::width - 1) / Vec<S>::width);
  t.tail = static_cast<int>(width - (t.vectors - 1) * Vec<S>::width);
  const bool carried = t.sequence->carried != 0;
  const int64_t first = t.sequence->first * n.heads + t.head;
  t.writes = (carried ? in.write_slots : in.uses.write_codes).as<int32_t>() + first * n.writes;
  t.reads = (carried ? in.read_slots : in.uses.read_codes).as<int32_t>() + first * n.reads;
  t.initial =
      in.memory.defined() ? in.memory.as<S>() + t.head * n.slots * n.dim + t.first_channel : zeros_of_slice<S>();
  t.initial_stride = in.memory.defined() ? n.dim : 0;
  if (carried) {
    t.numbered = nullptr;
    t.places = state.as<S>() + (t.sequence->row * n.heads + t.head) * n.slots * n.dim + t.first_channel;
    t.stride = n.dim;
  } else {
    t.numbered = in.uses.numbered.as<int32_t>() +
                 (t.sequence->first * n.heads + t.head * t.sequence->length) * (n.writes + n.reads);
    t.count = in.uses.count.as<int32_t>()[s * n.heads + t.head];
    t.places = table.as<S>() + worker * table.size(1) * table.size(2);
    t.stride = table.size(2);
  }
  return t;
}

/// Calls f(std::integral_constant<int, vectors>), 1 to `most`.
template <int most = kMaxVectors, class F> void with_vectors(int vectors, F&& f) {
  if constexpr (most > 1) {
    if (vectors < most) { return with_vectors<most - 1>(vectors, f); }
  }
  f(std::integral_constant<int, most>{});
}

/// The weights and gates of one token and head. decay of write n is decay[n * decay_step].
template <class S> struct Token {
  const S *k, *q, *decay;
  int64_t decay_step;
  S beta;

  /// at = token * heads + head.
  Token(const SparseDeltaInputs& in, const SparseDeltaSizes& n, int64_t at)
      : k(in.write_weights.as<S>() + at * n.writes),
        q(in.read_weights.as<S>() + at * n.reads),
        decay_step(in.decays_by_key() ? 1 : 0),
        beta(in.beta.as<S>()[at]) {
    decay = in.decay.as<S>() + at * (decay_step != 0 ? n.writes : 1);
  }
};

}  // namespace hebb::cpu::sparse_delta

namespace hebb {

/// Tables of all workers of a pass; undefined where every sequence is carried.
Tensor sparse_delta_table(Workspace& workspace, const SparseDeltaInputs& in);

}  // namespace hebb
