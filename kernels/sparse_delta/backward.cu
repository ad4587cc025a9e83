#include "kernels/common/cuda/add_slices.cuh"
#include "kernels/sparse_delta/slots.cuh"

// The grid of the forward pass, twice: backward in time for the adjoint G of M, forward for M itself, with known
// writes. FLOPs: H D (6 W + 2 R) and H D (4 W + 2 R) a token. HBM: 2 W + 2 R slots of G and 2 W + R of M a token and
// head, and the slots' sums over rows of the batch, B + 2 tables of fp32, once. What a token both writes and reads is
// one access, made by the warp that writes: so a token has one round of loads, and two barriers backward, one forward.
// With bf16 slots, W = R = 64: 840 and 560 instructions a warp and token.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace sparse_delta;

/// Where a block's sums over its channels go.
struct Sums {
  float *by_write, *by_read, *by_token;
};

/// What a warp needs of a token backward in time; read a token before.
template <class Stored> struct AdjointStep {
  static constexpr int kHeld = Tiling<Stored>::kHeld;
  Writes<Stored> writes;
  Reads<Stored> reads;
  int32_t pair[kHeld];
  Pair d_reading, e;
  float beta;

  __device__ __forceinline__ void load_writes(const Inputs<Stored>& in, const BlockSlice<Stored>& at, uint32_t token,
                                              int first, int count) {
    writes.load(in, at, in.next_write, token, first, count);
    load_entries(pair, at, in.paired_read + product(token, in.writes), first, count, kUnpaired);
  }
  __device__ __forceinline__ void load(const Inputs<Stored>& in, const BlockSlice<Stored>& at, const float* d_y,
                                       const float* error, uint32_t token, bool exists) {
    load_writes(in, at, token, at.first_entry(), exists ? in.writes : 0);
    reads.load(in, at, in.next_read, token, at.first_entry(), exists ? in.reads : 0);
    if (exists) {
      d_reading = at.load(d_y + product(token, in.dim));
      e = at.load(error + product(token, in.dim));
      beta = in.beta[token];
    }
  }
};

/// The same forward in time.
template <class Stored> struct ValueStep {
  static constexpr int kHeld = Tiling<Stored>::kHeld;
  Writes<Stored> writes;
  int32_t pair[kHeld], read[kHeld];
  Pair d_write, d_reading, e;
  float beta;

  __device__ __forceinline__ void load_writes(const Inputs<Stored>& in, const BlockSlice<Stored>& at, uint32_t token,
                                              int first, int count) {
    writes.load(in, at, in.write_codes, token, first, count);
    load_entries(pair, at, in.paired_read + product(token, in.writes), first, count, kUnpaired);
  }
  __device__ __forceinline__ void load_reads(const Inputs<Stored>& in, const BlockSlice<Stored>& at, uint32_t token,
                                             int first, int count) {
    load_entries(read, at, in.read_codes + product(token, in.reads), first, count, kNoSlot);
  }
  __device__ __forceinline__ void load(const Inputs<Stored>& in, const BlockSlice<Stored>& at, const float* d_u,
                                       const float* d_y, const float* error, uint32_t token, bool exists) {
    load_writes(in, at, token, at.first_entry(), exists ? in.writes : 0);
    load_reads(in, at, token, at.first_entry(), exists ? in.reads : 0);
    if (exists) {
      d_write = at.load(d_u + product(token, in.dim));
      d_reading = at.load(d_y + product(token, in.dim));
      e = at.load(error + product(token, in.dim));
      beta = in.beta[token];
    }
  }
};

template <class Stored>
__global__ void __launch_bounds__(32 * Tiling<Stored>::kWarps)
    sparse_delta_adjoint_kernel(float* d_u, float* all_sums, Sums out, const float* d_y, const float* error,
                                Inputs<Stored> in) {
  constexpr int kHeld = Tiling<Stored>::kHeld;
  constexpr bool kIsAhead = Tiling<Stored>::kNarrow;  // 16 warps have no registers for a second token
  HEBB_SHARED(Partial<Stored>, partial);
  const BlockSlice<Stored> at(in);
  const Memory<Stored> memory(in, at);
  const int64_t stream = at.row * in.heads + at.head;
  float* const sums = all_sums == nullptr ? nullptr : all_sums + stream * in.slots * in.dim + at.channel;
  const int write_count = in.writes, read_count = in.reads;
  const int64_t first_place = at.slice * in.tokens * in.heads;
  // G of a slot's first use in time is the sequence's part of d_memory.
  const auto leave = [&](int32_t code, int32_t first_use, const Part<Stored>& g) {
    memory.store(at, first_use < 0 ? code : kNoSlot, narrow(g));
    if (first_use >= 0 && sums != nullptr) { at.add(sums + product(static_cast<uint32_t>(first_use), in.dim), g); }
  };
  for (int64_t s = first_sequence(in.sequences, in.sequence_count, at.row); s < in.sequence_count; ++s) {
    const SparseDeltaSequence sequence = in.sequences[s];
    if (sequence.row != at.row) { break; }
    const int begin = sequence.first, end = begin + sequence.length;
    AdjointStep<Stored> now, next;
    Prefetch prefetch;
    const auto choose = [&](int t) {
      prefetch.choose(in, t >= begin, at.token(t), in.next_write, in.next_read, in.first_use);
    };
    now.load(in, at, d_y, error, at.token(end - 1), true);
    choose(end - 2);
    prefetch.issue(memory, at, sums, in.dim);
    choose(end - 3);
    for (int t = end - 1; t >= begin; --t) {
      const uint32_t token = at.token(t);
      const int32_t* const first_use = in.first_use + product(token, in.writes + in.reads);
      prefetch.issue(memory, at, sums, in.dim);
      choose(t - 3);
      if constexpr (kIsAhead) { next.load(in, at, d_y, error, at.token(t - 1), t > begin); }
      Held<Stored> held[kHeld], read[kHeld];
      int32_t first_writes[kHeld], first_reads[kHeld];
      float pair_q[kHeld];
      const auto gather_writes = [&](int first) {
        memory.load(held, at, now.writes.code);
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) {
          pair_q[j] = now.pair[j] >= 0 ? (in.read_weights + product(token, in.reads))[now.pair[j]] : 0.0f;
        }
      };
      const auto gather_reads = [&](int first) {
        memory.load(read, at, now.reads.code);
        load_entries(first_reads, at, first_use + in.writes, first, read_count, kNotFirst);
      };
      const auto load_writes = [&](int first) {
        now.load_writes(in, at, token, first, write_count);
        gather_writes(first);
      };
      const auto load_reads = [&](int first) {
        now.reads.load(in, at, in.next_read, token, first, read_count);
        gather_reads(first);
      };
      const Part<Stored> d_reading = at.spread(now.d_reading), e = at.spread(now.e);
      // G after the token's own read of the slot.
      const auto adjoint = [&](int j) {
        Part<Stored> g = widen(held[j]);
        if (now.pair[j] >= 0) { g.add(pair_q[j], d_reading); }
        return g;
      };
      gather_reads(at.first_entry());
      gather_writes(at.first_entry());
      each_group(at, read_count, true, load_reads, [&](int) {
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) {
          Part<Stored> g = widen(read[j]);
          g.add(now.reads.q[j], d_reading);
          leave(now.reads.code[j], first_reads[j], g);
        }
      });
      load_entries(first_writes, at, first_use, at.first_entry(), write_count, kNotFirst);
      Part<Stored> sum{};
      float* const by_write = out.by_write + (first_place + token) * 2 * in.writes;
      each_group(at, write_count, true, load_writes, [&](int first) {
        float dots[kHeld];
        int places[kHeld];
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) {
          const Part<Stored> g = adjoint(j);
          sum.add(now.writes.k[j], g);
          dots[j] = g.times(e);
          places[j] = now.writes.code[j] != kNoSlot ? at.entry(first, j) : -1;
        }
        store_dots(by_write, at, dots, places);
      });
      put(partial, at, at.fold(sum));
      __syncthreads();
      const Pair sums_of_warps = total(partial, at);
      if (at.warp == 0) { at.store(d_u + product(token, in.dim), sums_of_warps, false); }
      const Part<Stored> d_write = at.spread(sums_of_warps);
      const auto load_writes_again = [&](int first) {
        load_writes(first);
        load_entries(first_writes, at, first_use, first, write_count, kNotFirst);
      };
      each_group(at, write_count, write_count <= at.entries_at_once(), load_writes_again, [&](int) {
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) {
          Part<Stored> g = adjoint(j);
          g.add(-now.beta * now.writes.k[j], d_write);
          g.scale(now.writes.decay[j]);
          leave(now.writes.code[j], first_writes[j], g);
        }
      });
      if constexpr (kIsAhead) {
        now = next;
      } else {
        now.load(in, at, d_y, error, at.token(t - 1), t > begin);
      }
      __syncthreads();
    }
  }
}

template <class Stored>
__global__ void __launch_bounds__(32 * Tiling<Stored>::kWarps)
    sparse_delta_value_kernel(float* d_v, Sums out, const float* d_u, const float* d_y, const float* error,
                              Inputs<Stored> in, bool accumulate) {
  constexpr int kHeld = Tiling<Stored>::kHeld;
  constexpr bool kIsAhead = Tiling<Stored>::kNarrow;
  const BlockSlice<Stored> at(in);
  const Memory<Stored> memory(in, at, false);
  const int write_count = in.writes, read_count = in.reads;
  const int64_t first_place = at.slice * in.tokens * in.heads;
  for (int64_t s = first_sequence(in.sequences, in.sequence_count, at.row); s < in.sequence_count; ++s) {
    const SparseDeltaSequence sequence = in.sequences[s];
    if (sequence.row != at.row) { break; }
    const int begin = sequence.first, end = begin + sequence.length;
    ValueStep<Stored> now, next;
    Prefetch prefetch;
    const auto choose = [&](int t) { prefetch.choose(in, t < end, at.token(t), in.write_codes, in.read_codes); };
    now.load(in, at, d_u, d_y, error, at.token(begin), true);
    choose(begin + 1);
    prefetch.issue(memory, at);
    choose(begin + 2);
    for (int t = begin; t < end; ++t) {
      const uint32_t token = at.token(t);
      const int64_t place = first_place + token;
      prefetch.issue(memory, at);
      choose(t + 3);
      if constexpr (kIsAhead) { next.load(in, at, d_u, d_y, error, at.token(t + 1), t + 1 < end); }
      Held<Stored> held[kHeld], read[kHeld];
      const auto load_writes = [&](int first) {
        now.load_writes(in, at, token, first, write_count);
        memory.load(held, at, now.writes.code);
      };
      const auto load_reads = [&](int first) {
        now.load_reads(in, at, token, first, read_count);
        memory.load(read, at, now.read);
      };
      memory.load(held, at, now.writes.code);
      memory.load(read, at, now.read);
      if (at.warp == 0) {
        const float dot = warp_sum(now.d_write.times(now.e));
        if (at.lane == 0) { out.by_token[place] = dot; }
        if (d_v != nullptr) {
          Pair d = now.d_write;
          d.scale(now.beta);
          at.store(d_v + product(token, in.dim), d, accumulate);
        }
      }
      now.e.scale(now.beta);
      const Part<Stored> u = at.spread(now.e), d_write = at.spread(now.d_write), d_reading = at.spread(now.d_reading);
      // Slots that the token writes and slots that it only reads are different ones: their loads and stores need no
      // order. What it reads of its own writes comes from registers.
      float* const by_write = out.by_write + (place * 2 + 1) * in.writes;
      float* const by_read = out.by_read + place * in.reads;
      each_group(at, write_count, true, load_writes, [&](int first) {
        float before[kHeld], after[kHeld];
        int places[kHeld];
        bool has_pairs = false;
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) {
          Part<Stored> m = widen(held[j]);
          const Held<Stored> stored = overwrite(m, now.writes.decay[j], now.writes.k[j], u);
          m.scale(now.writes.decay[j]);
          before[j] = m.times(d_write);
          after[j] = widen(stored).times(d_reading);
          memory.store(at, now.writes.code[j], stored);
          places[j] = now.writes.code[j] != kNoSlot ? at.entry(first, j) : -1;
          has_pairs = has_pairs || now.pair[j] >= 0;
        }
        store_dots(by_write, at, before, places);
        if (__ballot_sync(kAllLanes, has_pairs) != 0) { store_dots(by_read, at, after, now.pair); }
      });
      each_group(at, read_count, true, load_reads, [&](int first) {
        float dots[kHeld];
        int places[kHeld];
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) {
          dots[j] = widen(read[j]).times(d_reading);
          places[j] = now.read[j] != kNoSlot ? at.entry(first, j) : -1;
        }
        store_dots(by_read, at, dots, places);
      });
      if constexpr (kIsAhead) {
        now = next;
      } else {
        now.load(in, at, d_u, d_y, error, at.token(t + 1), t + 1 < end);
      }
      __syncthreads();
    }
  }
}

constexpr int kUsesAhead = 4;

/// The chains of SparseDeltaScan: the uses of one slot by one sequence lie side by side in `order`; the thread at the
/// last of them goes back to the first. Row: token of a row and head, column: entry; they only number the sorted
/// entries.
struct Chains {
  double* carry;  // [N, H, W] after each write
  const int32_t *order, *first_use;
  const float *k, *q, *decay, *beta, *by_write, *d_q;
  int64_t length, heads, writes, reads;
  bool decays_by_key;

  __device__ void operator()(int64_t row, int64_t column) const {
    const Split at(row, length), stream(at.quotient, heads);
    const int64_t width = writes + reads, all = length * width,
                  first = (stream.quotient * length) * heads + stream.remainder;
    const int32_t* const entries = order + at.quotient * all;
    int64_t i = at.remainder * width + column;
    if (i + 1 < all && !is_first({entries[i + 1], width}, first)) { return; }
    double sum = 0;
    for (bool more = true; more; i -= kUsesAhead) {
      Use uses[kUsesAhead];  // under way together, past the first use of the slot, too
      HEBB_UNROLL
      for (int u = 0; u < kUsesAhead; ++u) { uses[u] = use(Split(entries[i >= u ? i - u : 0], width), first); }
      HEBB_UNROLL
      for (int u = 0; u < kUsesAhead; ++u) {
        if (more) {
          sum = uses[u].cuts ? 0.0 : sum + uses[u].change;
          if (uses[u].write >= 0) { carry[uses[u].write] = sum; }
          more = !uses[u].is_first;
        }
      }
    }
  }

 private:
  struct Use {
    int64_t write;  // among the writes; -1: a read
    double change;
    bool cuts, is_first;
  };

  __device__ bool is_first(const Split& e, int64_t first) const {
    return first_use[(first + e.quotient * heads) * (writes + reads) + e.remainder] >= 0;
  }
  /// Reads and writes load from different places, but without a branch: behind one each use would wait for its own.
  __device__ __forceinline__ Use use(const Split& e, int64_t first) const {
    const int64_t token = first + e.quotient * heads, n = e.remainder;
    const bool is_read = n >= writes;
    const int64_t read = token * reads + n - writes, write = token * writes + (is_read ? 0 : n);
    const float* const dots = by_write + token * 2 * writes + n;  // of a write: <G, e>, <m, d_u>
    const double weight = *(is_read ? q + read : k + write), along = *(is_read ? d_q + read : dots),
                 other = *(is_read ? d_q + read : dots + writes), rate = beta[token];
    const bool cuts = decay[decays_by_key ? write : token] == 0.0f;  // underflowed, the past is cut off exactly
    return {is_read ? -1 : write, is_read ? weight * along : -(weight * rate * (along + other)), !is_read && cuts,
            is_first(e, first)};
  }
};

/// One token and head.
struct Finish {
  float *d_k, *d_g;
  const double* carry;
  const float *k, *g, *beta, *by_write;
  int64_t writes;
  bool decays_by_key;

  __device__ void operator()(int64_t token, int lane) const {
    double sum = 0;
    for (int64_t n = lane; n < writes; n += 32) {
      const double c = carry[token * writes + n];
      const float* const dots = by_write + token * 2 * writes + n;
      const double direct =
          static_cast<double>(beta[token]) * (static_cast<double>(dots[0]) - static_cast<double>(dots[writes]));
      sum += decays_by_key ? static_cast<double>(k[token * writes + n]) * c : c;
      d_k[token * writes + n] = static_cast<float>(direct + (decays_by_key ? static_cast<double>(g[token]) * c : 0.0));
    }
    sum = warp_sum(sum);
    if (lane == 0) { d_g[token] = static_cast<float>(sum); }
  }
};

}  // namespace

void run(Stream& stream, const SparseDeltaBackward& a, const SparseDeltaBackwardScratch& scratch) {
  const Sums out{a.products.by_write.as<float>(), a.products.by_read.as<float>(), a.products.by_token.as<float>()};
  float* const sums = a.d_memory.defined() ? scratch.sums.as<float>() : nullptr;
  if (sums != nullptr) { zero_bytes(stream, sums, scratch.sums.bytes()); }
  const int64_t batch = a.in.batch;
  dispatch_float(a.in.place_type, [&]<class Stored>(Stored) {
    const Inputs<Stored> in = inputs_of<Stored>(a.in, scratch.table, {});
    HEBB_ASSERT(a.products.by_token.size(0) == in.slices && a.in.uses.paired_read.defined());
    const unsigned blocks = blocks_for(batch * in.heads * in.slices, 1),
                   threads = threads_for<Stored>(in.writes, in.reads);
    HEBB_LAUNCH(sparse_delta_adjoint_kernel<Stored>, blocks, threads, 0, stream, scratch.d_u.as<float>(), sums, out,
                a.d_y.as<float>(), a.error.as<float>(), in);
    if (sums != nullptr) {
      each_element(
          "sparse_delta_memory", stream, in.heads * in.slots, in.dim,
          AddSlices<float>{a.d_memory.as<float>(), sums, batch, in.heads * in.slots * in.dim, in.dim, in.dim, true});
    }
    HEBB_LAUNCH(sparse_delta_value_kernel<Stored>, blocks, threads, 0, stream, a.d_v.as<float>(), out,
                scratch.d_u.as<float>(), a.d_y.as<float>(), a.error.as<float>(), in, a.accumulate);
  });
}

void run(Stream& stream, const SparseDeltaScan& a, const SparseDeltaScanScratch& scratch) {
  const int64_t slices = a.products.by_token.size(0), tokens = a.products.by_token.size(1),
                heads = a.products.by_token.size(2), rows = tokens * heads;
  const int64_t writes = a.in.write_weights.size(2), reads = a.in.read_weights.size(2), streams = a.in.batch * heads;
  const bool by_key = a.in.decays_by_key();
  float *const by_write = a.products.by_write.as<float>(), *const d_q = a.d_read_weights.as<float>();
  const float *const k = a.in.write_weights.as<float>(), *const beta = a.in.beta.as<float>();
  double* const carry = scratch.carry.as<double>();
  const auto add_slices = [&](const char* name, float* to, const float* from, int64_t columns) {
    each_element(name, stream, 1, rows * columns,
                 AddSlices<float>{to, from, slices, rows * columns, 0, rows * columns, false});
  };
  add_slices("sparse_delta_writes", by_write, by_write, 2 * writes);  // in place of the first
  add_slices("sparse_delta_reads", d_q, a.products.by_read.as<float>(), reads);
  add_slices("sparse_delta_tokens", a.d_beta.as<float>(), a.products.by_token.as<float>(), 1);
  each_element(
      "sparse_delta_chains", stream, rows, writes + reads,
      Chains{carry, a.in.uses.order.as<int32_t>(), a.in.uses.first_use.as<int32_t>(), k, a.in.read_weights.as<float>(),
             a.in.decay.as<float>(), beta, by_write, d_q, rows / streams, heads, writes, reads, by_key});
  each_warp("sparse_delta_finish", stream, rows,
            Finish{a.d_write_weights.as<float>(), a.d_g.as<float>(), carry, k, a.g.as<float>(), beta, by_write, writes,
                   by_key});
}

}  // namespace hebb::HEBB_DEVICE
