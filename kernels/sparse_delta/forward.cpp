#include "kernels/sparse_delta/slots.h"

namespace hebb {
SparseDeltaUses sparse_delta_uses(Workspace& workspace, const Tensor& write_slots, const Tensor& read_slots,
                                  const Tensor& sequences, int64_t batch, bool backward) {
  const int64_t tokens = write_slots.size(0), heads = write_slots.size(1);
  const int64_t entries = write_slots.size(2) + read_slots.size(2);
  const auto codes = [&](const Tensor& slots) { return workspace.tensor(slots.shape, DType::i32, "slot codes"); };
  SparseDeltaUses uses;
  uses.write_codes = codes(write_slots);
  uses.read_codes = codes(read_slots);
  if (!workspace.on_gpu()) {
    uses.numbered = workspace.tensor({tokens, heads, entries}, DType::i32, "touched slots");
    uses.count = workspace.tensor({sequences.size(0), heads}, DType::i32, "touched slots");
    return uses;
  }
  uses.first_use = workspace.tensor({tokens, heads, entries}, DType::i32, "touched slots");
  uses.order = workspace.tensor({batch, heads, tokens / batch * entries}, DType::i32, "uses of slots");
  if (backward) {
    uses.next_write = codes(write_slots);
    uses.next_read = codes(read_slots);
    uses.paired_read = codes(write_slots);
  }
  return uses;
}

SparseDeltaIndexScratch plan(Workspace& workspace, const SparseDeltaIndex& args) {
  const int64_t heads = args.write_slots.size(1);
  if (!workspace.on_gpu()) {
    const int64_t workers = cpu::sparse_delta::workers_of(args.batch, heads, 1);
    return {.map = workspace.tensor({workers, args.slots}, DType::i32, "slot map")};
  }
  // Some rows of the batch and heads at a time, at least one; an entry's key, and what sort_keys takes of it.
  constexpr int64_t kEntriesAtOnce = int64_t{1} << 22, kIntsPerEntry = 6, kMore = 4096;
  const int64_t entries = args.uses.order.size(2);
  const int64_t at_once = std::clamp<int64_t>(kEntriesAtOnce / entries, 1, args.batch * heads);
  return {.map = workspace.tensor({1, at_once * entries * kIntsPerEntry + kMore}, DType::i32, "slot map")};
}
HEBB_KERNEL_PLANNED(SparseDeltaIndex)

Tensor sparse_delta_table(Workspace& workspace, const SparseDeltaInputs& in) {
  if (!in.uses.write_codes.defined()) { return {}; }
  const auto table = [&](Shape shape) { return workspace.tensor(shape, in.place_type, "sparse delta slots"); };
  const int64_t heads = in.v.size(1), dim = in.v.size(2);
  if (workspace.on_gpu()) {
    const int64_t slices = cpu::sparse_delta::divide_up(dim, kSparseDeltaSlice);
    return table({in.batch, heads, slices, in.slots, kSparseDeltaSlice});
  }
  const cpu::sparse_delta::SparseDeltaSizes n(in);
  return table({cpu::sparse_delta::workers_of(in.batch, heads, n.slices), cpu::sparse_delta::places_of(in), n.slice});
}

SparseDeltaForwardScratch plan(Workspace& workspace, const SparseDeltaForward& args) {
  const bool can_narrow = workspace.on_gpu() && !args.state.defined() && args.in.v.size(2) % kSparseDeltaPack == 0;
  HEBB_ASSERT(args.in.place_type == args.in.v.dtype || (args.in.place_type == DType::bf16 && can_narrow));
  return {.table = sparse_delta_table(workspace, args.in)};
}
HEBB_KERNEL_PLANNED(SparseDeltaForward)

namespace cpu {

using sparse_delta::Channels;
using sparse_delta::SparseDeltaSizes;
using sparse_delta::Task;
using sparse_delta::Token;

namespace {

/// Codes of one head of a sequence; map[slot]: that of its next use, kNoSlot before the first.
void index_head(const SparseDeltaIndex& a, const SparseDeltaSequence& s, int64_t heads, int64_t head, int32_t* count,
                int32_t* map) {
  const int64_t writes = a.write_slots.size(2), reads = a.read_slots.size(2);
  int32_t* numbered = a.uses.numbered.as<int32_t>() + (s.first * heads + head * s.length) * (writes + reads);
  int32_t used = 0;
  const auto code_of = [&](int32_t slot) {
    if (map[slot] == kNoSlot) {
      map[slot] = sparse_delta::unwritten(used);
      numbered[used++] = slot;
    }
    return map[slot];
  };
  for (int64_t t = s.first; t < s.first + s.length; ++t) {
    const int64_t at = t * heads + head;
    for (int64_t n = at * writes; n < (at + 1) * writes; ++n) {
      const int32_t slot = a.write_slots.as<int32_t>()[n], code = code_of(slot);
      a.uses.write_codes.as<int32_t>()[n] = code;
      map[slot] = sparse_delta::place_of(code);
    }
    for (int64_t m = at * reads; m < (at + 1) * reads; ++m) {
      a.uses.read_codes.as<int32_t>()[m] = code_of(a.read_slots.as<int32_t>()[m]);
    }
  }
  *count = used;
  for (int32_t c = 0; c < used; ++c) { map[numbered[c]] = kNoSlot; }
}

template <class S, int NV>
void forward_task(const SparseDeltaForward& a, const SparseDeltaSizes& n, const Task<S>& task) {
  using Slot = Channels<S, NV>;
  const int tail = task.tail;
  const int32_t *writes = task.writes, *reads = task.reads;
  for (int64_t t = task.first(); t < task.end(); ++t) {
    const int64_t at = t * n.heads + task.head, channel = at * n.dim + task.first_channel;
    const Token<S> token(a.in, n, at);
    Slot e(a.in.v.as<S>() + channel, tail);
    for (int64_t i = 0; i < n.writes; ++i) {
      e.add(-token.k[i] * token.decay[i * token.decay_step], Slot(task.value(writes[i]), tail));
    }
    if (a.error.defined()) { e.put(a.error.as<S>() + channel, tail); }
    e.scale(token.beta);
    for (int64_t i = 0; i < n.writes; ++i) {
      Slot m(task.value(writes[i]), tail);
      m.scale(token.decay[i * token.decay_step]);
      m.add(token.k[i], e);
      m.put(task.place(writes[i]), tail);
    }
    Slot y(S(0));
    for (int64_t i = 0; i < n.reads; ++i) { y.add(token.q[i], Slot(task.value(reads[i]), tail)); }
    y.put(a.y.as<S>() + channel, tail);
    writes += n.heads * n.writes;
    reads += n.heads * n.reads;
  }
}

}  // namespace

void run(Stream&, const SparseDeltaIndex& a, const SparseDeltaIndexScratch& scratch) {
  const int64_t heads = a.write_slots.size(1), sequences = a.sequences.size(0);
  int32_t* map = scratch.map.as<int32_t>();
  std::fill_n(map, scratch.map.numel(), kNoSlot);
  for_tasks(sequences * heads, scratch.map.size(0), [&](int64_t i, int64_t worker) {
    const SparseDeltaSequence& s = sparse_delta::sequences(a.sequences)[i / heads];
    if (s.carried == 0) { index_head(a, s, heads, i % heads, a.uses.count.as<int32_t>() + i, map + worker * a.slots); }
  });
}

void run(Stream&, const SparseDeltaDecay& a) {
  dispatch_real(a.g.dtype, [&]<class S>(S) {
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

void run(Stream&, const SparseDeltaForward& a, const SparseDeltaForwardScratch& scratch) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    const SparseDeltaSizes n(a.in);
    // Without private tables any number of workers will do.
    const int64_t workers = scratch.table.defined() ? scratch.table.size(0) : threads();
    for_tasks(n.tasks(), workers, [&](int64_t i, int64_t worker) {
      const Task<S> task = sparse_delta::make_task<S>(a.in, n, i, scratch.table, worker, a.state);
      sparse_delta::with_vectors(task.vectors, [&](auto vectors) { forward_task<S, vectors()>(a, n, task); });
    });
  });
}

}  // namespace cpu
}  // namespace hebb
