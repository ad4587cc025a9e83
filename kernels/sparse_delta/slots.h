#pragma once
// Rows of a sparse delta memory as one task sees them: one sequence, one head, one slice of channels.
#include <algorithm>
#include <atomic>
#include <type_traits>

#include "core/parallel.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/sparse_delta/sparse_delta.h"

namespace hebb::cpu::sparse_delta {

/// Registers of a slice: as many independent chains of multiply-adds as hide their latency.
inline constexpr int kMaxVectors = 8;

struct Sizes {
  int64_t tokens, heads, dim, slots, writes, reads, sequences, slices, slice;

  explicit Sizes(const SparseDeltaInputs& in, int64_t num_slots)
      : tokens(in.v.size(0)),
        heads(in.v.size(1)),
        dim(in.v.size(2)),
        slots(num_slots),
        writes(in.write_weights.size(2)),
        reads(in.read_weights.size(2)),
        sequences(in.sequences.size(0)),
        slices(sparse_delta_slices(dim, in.v.dtype)),
        slice(sparse_delta_slice(dim, in.v.dtype)) {}
  int64_t tasks() const { return sequences * heads * slices; }
};

/// Calls f(task, worker) for every task, handed out in order one at a time; a worker runs one at a time.
template <class F> void for_tasks(int64_t tasks, int64_t workers, F&& f) {
  std::atomic<int64_t> next{0};
  parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t task = next++; task < tasks; task = next++) { f(task, worker); }
    }
  });
}

/// NV registers of one row; `tail` is the number of channels in the last of them.
template <class S, int NV> struct Channels {
  Vec<S> x[NV];

  Channels() = default;
  explicit Channels(S value) {
    for (Vec<S>& v : x) { v = Vec<S>(value); }
  }
  Channels(const S* p, int tail) {
    for (int j = 0; j + 1 < NV; ++j) { x[j] = load(p + j * Vec<S>::width); }
    x[NV - 1] = load(p + (NV - 1) * Vec<S>::width, tail);
  }
  void put(S* p, int tail) const {
    for (int j = 0; j + 1 < NV; ++j) { store(p + j * Vec<S>::width, x[j]); }
    store(p + (NV - 1) * Vec<S>::width, x[NV - 1], tail);
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

/// One sequence, one head, one slice of channels. Codes of rows: see SparseDeltaIndex.
template <class S> struct Task {
  const SparseDeltaSequence* sequence;
  int64_t head, slice, first_channel;
  int vectors, tail;
  const int32_t *writes, *reads;  // codes of rows, from the first token on; heads * W and heads * R a token
  const int32_t* touched;         // slots of private rows
  int32_t count = 0;              // private rows in use
  S* rows;                        // private or carried
  int64_t row_stride;
  const S* initial;  // memory of the head
  int64_t initial_stride;

  int64_t first() const { return sequence->first; }
  int64_t end() const { return int64_t{sequence->first} + sequence->length; }
  S* row(int32_t code) const { return rows + (code >= 0 ? code : ~code) * row_stride; }
  const S* value(int32_t code) const {
    return code >= 0 ? rows + code * row_stride : initial + touched[~code] * initial_stride;
  }
};

template <class S> inline const S* zero_row() {
  static const S zeros[kMaxVectors * Vec<S>::width] = {};
  return zeros;
}

template <class S>
Task<S> make_task(const SparseDeltaInputs& in, const Sizes& n, int64_t task, int64_t worker, const Tensor& state) {
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
  t.writes = (carried ? in.write_slots : in.write_rows).as<int32_t>() + first * n.writes;
  t.reads = (carried ? in.read_slots : in.read_rows).as<int32_t>() + first * n.reads;
  t.initial = in.memory.defined() ? in.memory.as<S>() + t.head * n.slots * n.dim + t.first_channel : zero_row<S>();
  t.initial_stride = in.memory.defined() ? n.dim : 0;
  if (carried) {
    t.touched = nullptr;
    t.rows = state.as<S>() + (t.sequence->row * n.heads + t.head) * n.slots * n.dim + t.first_channel;
    t.row_stride = n.dim;
  } else {
    t.touched =
        in.touched.as<int32_t>() + (t.sequence->first * n.heads + t.head * t.sequence->length) * (n.writes + n.reads);
    t.count = in.count.as<int32_t>()[s * n.heads + t.head];
    t.rows = in.table.as<S>() + worker * in.table.size(1) * in.table.size(2);
    t.row_stride = in.table.size(2);
  }
  return t;
}

/// Calls f(std::integral_constant<int, vectors>).
template <class F> void with_vectors(int vectors, F&& f) {
  static_assert(kMaxVectors == 8);
  switch (vectors) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
    case 5: return f(std::integral_constant<int, 5>{});
    case 6: return f(std::integral_constant<int, 6>{});
    case 7: return f(std::integral_constant<int, 7>{});
    default: return f(std::integral_constant<int, 8>{});
  }
}

/// The weights and gates of one token and head. decay of write n is decay[n * decay_step].
template <class S> struct Token {
  const S *k, *q, *decay;
  int64_t decay_step;
  S beta;

  /// at = token * heads + head.
  Token(const SparseDeltaInputs& in, const Sizes& n, int64_t at)
      : k(in.write_weights.as<S>() + at * n.writes),
        q(in.read_weights.as<S>() + at * n.reads),
        decay_step(in.decays_by_key() ? 1 : 0),
        beta(in.beta.as<S>()[at]) {
    decay = in.decay.as<S>() + at * (decay_step != 0 ? n.writes : 1);
  }
};

}  // namespace hebb::cpu::sparse_delta
