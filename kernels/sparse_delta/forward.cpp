#include "kernels/sparse_delta/sparse_delta.h"

#include <cstdint>

#include "kernels/sparse_delta/slots.h"

namespace hebb {
namespace {

int64_t lanes_of(DType dtype) { return cpu::kVecBytes / dtype_bytes(dtype); }
int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

int64_t sparse_delta_slice(int64_t dim, DType dtype) {
  const int64_t vectors = divide_up(dim, lanes_of(dtype));
  return divide_up(vectors, divide_up(vectors, cpu::sparse_delta::kMaxVectors)) * lanes_of(dtype);
}

int64_t sparse_delta_slices(int64_t dim, DType dtype) { return divide_up(dim, sparse_delta_slice(dim, dtype)); }

SparseDeltaScratch sparse_delta_scratch(const Stream& stream, const SparseDeltaSizes& n, DType dtype) {
  SparseDeltaScratch s;
  if (stream.on_gpu()) {
    // Sorting: some rows and heads at a time, at least one; an entry's key, and what sort_keys takes of it.
    constexpr int64_t kEntriesAtOnce = int64_t{1} << 22, kIntsPerEntry = 6, kMore = 4096;
    const int64_t entries = n.length * (n.writes + n.reads), streams = n.batch * n.heads;
    const int64_t at_once = std::clamp<int64_t>(kEntriesAtOnce / entries, 1, streams);
    s.map = {1, at_once * entries * kIntsPerEntry + kMore};
    s.order = {n.batch, n.heads, entries};
    s.slices = divide_up(n.dim, kSparseDeltaSlice);
    s.table = {n.batch, n.heads, s.slices, n.slots, kSparseDeltaSlice};
    s.sums = {n.batch, n.heads, n.slots, n.dim};
    s.carry = {n.tokens(), n.heads, n.writes};
    return s;
  }
  s.slices = sparse_delta_slices(n.dim, dtype);
  const auto workers = [&](int64_t slices) { return std::min<int64_t>(threads(), n.batch * n.heads * slices); };
  s.map = {workers(1), n.slots};
  s.table = {workers(s.slices), n.row_limit(), sparse_delta_slice(n.dim, dtype)};
  s.carry = {workers(1), n.row_limit()};
  return s;
}

namespace cpu {

using sparse_delta::Channels;
using sparse_delta::Sizes;
using sparse_delta::Task;
using sparse_delta::Token;

namespace {

constexpr int32_t kUnused = INT32_MIN;

/// Numbers of one head of a sequence; map[slot]: kUnused, ~c (read only so far) or c (written).
void index_head(const SparseDeltaIndex& a, const SparseDeltaSequence& s, int64_t heads, int64_t head, int32_t* count,
                int32_t* map) {
  const int64_t writes = a.write_slots.size(2), reads = a.read_slots.size(2);
  int32_t* touched = a.touched.as<int32_t>() + (s.first * heads + head * s.length) * (writes + reads);
  int32_t used = 0;
  const auto number = [&](int32_t slot) {
    if (map[slot] == kUnused) {
      map[slot] = ~used;
      touched[used++] = slot;
    }
    return map[slot];
  };
  for (int64_t t = s.first; t < s.first + s.length; ++t) {
    const int64_t at = t * heads + head;
    for (int64_t n = at * writes; n < (at + 1) * writes; ++n) {
      const int32_t slot = a.write_slots.as<int32_t>()[n], code = number(slot);
      a.write_rows.as<int32_t>()[n] = code;
      map[slot] = code >= 0 ? code : ~code;
    }
    for (int64_t m = at * reads; m < (at + 1) * reads; ++m) {
      a.read_rows.as<int32_t>()[m] = number(a.read_slots.as<int32_t>()[m]);
    }
  }
  *count = used;
  for (int32_t c = 0; c < used; ++c) { map[touched[c]] = kUnused; }
}

template <class S, int NV> void forward_task(const SparseDeltaForward& a, const Sizes& n, const Task<S>& task) {
  using Row = Channels<S, NV>;
  const int tail = task.tail;
  const int32_t *writes = task.writes, *reads = task.reads;
  for (int64_t t = task.first(); t < task.end(); ++t) {
    const int64_t at = t * n.heads + task.head, channel = at * n.dim + task.first_channel;
    const Token<S> token(a.in, n, at);
    Row e(a.in.v.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.writes; ++i) {
      e.add(-token.k[i] * token.decay[i * token.decay_step], Row(task.value(writes[i]), tail));
    }
    if (a.error.defined()) { e.put(a.error.as<S>() + channel, tail); }
    e.scale(token.beta);
    for (int64_t i = 0; i < n.writes; ++i) {
      Row m(task.value(writes[i]), tail);
      m.scale(token.decay[i * token.decay_step]);
      m.add(token.k[i], e);
      m.put(task.row(writes[i]), tail);
    }
    Row y(S(0));
    for (int64_t i = 0; i < n.reads; ++i) { y.add(token.q[i], Row(task.value(reads[i]), tail)); }
    y.put(a.y.as<S>() + channel, tail);
    writes += n.heads * n.writes;
    reads += n.heads * n.reads;
  }
}

template <class S> void forward(const SparseDeltaForward& a) {
  const int64_t slots = a.in.memory.defined() ? a.in.memory.size(1) : a.state.defined() ? a.state.size(2) : 0;
  const Sizes n(a.in, slots);
  // Without private tables any number of workers will do.
  const int64_t workers = a.in.table.defined() ? a.in.table.size(0) : threads();
  sparse_delta::for_tasks(n.tasks(), workers, [&](int64_t i, int64_t worker) {
    const Task<S> task = sparse_delta::make_task<S>(a.in, n, i, worker, a.state);
    sparse_delta::with_vectors(task.vectors, [&](auto vectors) { forward_task<S, vectors()>(a, n, task); });
  });
}

}  // namespace

void run(Stream&, const SparseDeltaIndex& a) {
  const int64_t heads = a.write_slots.size(1), sequences = a.sequences.size(0), slots = a.slots;
  std::fill_n(a.map.as<int32_t>(), a.map.numel(), kUnused);
  sparse_delta::for_tasks(sequences * heads, a.map.size(0), [&](int64_t i, int64_t worker) {
    const SparseDeltaSequence& s = sparse_delta::sequences(a.sequences)[i / heads];
    if (s.carried == 0) {
      index_head(a, s, heads, i % heads, a.count.as<int32_t>() + i, a.map.as<int32_t>() + worker * slots);
    }
  });
}

void run(Stream&, const SparseDeltaDecay& a) {
  dispatch_real(a.g.dtype, [&](auto zero) {
    using S = decltype(zero);
    const int64_t heads = a.g.numel(), writes = a.decay.numel() / heads;
    const bool by_key = a.write_weights.defined();
    const S *g = a.g.as<S>(), *k = by_key ? a.write_weights.as<S>() : nullptr;
    S* decay = a.decay.as<S>();
    constexpr int64_t kGrain = 256;
    parallel_for(heads, kGrain, [&](int64_t begin, int64_t end) {
      if (by_key) {
        for (int64_t i = begin; i < end; ++i) {
          vector_loop<S>(writes, [&](int64_t j, auto lanes) {
            store(decay + i * writes + j, exp(Vec<S>(g[i]) * load(k + i * writes + j, lanes)), lanes);
          });
        }
      } else {
        vector_loop<S>(end - begin, [&](int64_t i, auto lanes) {
          store(decay + begin + i, exp(load(g + begin + i, lanes)), lanes);
        });
      }
    });
  });
}

void run(Stream&, const SparseDeltaForward& args) {
  dispatch_real(args.y.dtype, [&](auto zero) { forward<decltype(zero)>(args); });
}

}  // namespace cpu
}  // namespace hebb
