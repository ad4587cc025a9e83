#include <algorithm>

#include "kernels/common/cuda/sort.cuh"
#include "kernels/sparse_delta/slots.cuh"

// One block a row of the batch, head and 64 channels goes over the row's tokens; its warps share the slots of a token.
// Channels are independent, so blocks never meet, and the slots of a token are distinct, so warps do not either. FLOPs:
// H D (4 W + 2 R) a token. HBM: 2 W + R slots of D numbers, fp32 or bf16, a token and head where the table exceeds L2.
// A token waits for one round of loads, from L2 since it was asked for them two tokens before (what it writes together
// with what the token before it reads), and for two barriers. At W = R = 64 a warp issues 600 instructions a token with
// bf16 slots. The index is a radix sort of all (slot,
// time) of a row and head: HBM, about 70 bytes a slot and token.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace sparse_delta;

template <class Stored>
__global__ void __launch_bounds__(32 * Tiling<Stored>::kWarps)
    sparse_delta_forward_kernel(float* y, float* error, Inputs<Stored> in) {
  constexpr int kHeld = Tiling<Stored>::kHeld;
  HEBB_SHARED(Partial<Stored>, old);
  HEBB_SHARED(Partial<Stored>, readings);
  const BlockSlice<Stored> at(in);
  const int write_count = in.writes, read_count = in.reads;
  for (int64_t s = first_sequence(in.sequences, in.sequence_count, at.row); s < in.sequence_count; ++s) {
    const SparseDeltaSequence sequence = in.sequences[s];
    if (sequence.row != at.row) { break; }
    const bool carried = sequence.carried != 0;
    const Memory<Stored> memory(in, at, carried);
    const int32_t *const write_codes = carried ? in.write_slots : in.write_codes, *const read_codes =
                                                                                      carried ? in.read_slots
                                                                                              : in.read_codes;
    const int begin = sequence.first, end = begin + sequence.length;
    Writes<Stored> writes, next;
    Reads<Stored> reads;
    Prefetch prefetch;
    const auto choose = [&](int t) { prefetch.choose(in, t < end, at.token(t), write_codes, read_codes); };
    writes.load(in, at, write_codes, at.token(begin), at.first_entry(), write_count);
    reads.load(in, at, read_codes, 0, 0, 0);
    Pair v = at.load(in.v + product(at.token(begin), in.dim)), next_v{};
    float beta = in.beta[at.token(begin)], next_beta = 0;
    choose(begin + 1);
    prefetch.issue(memory, at);
    choose(begin + 2);
    for (int t = begin; t <= end; ++t) {  // what token t writes and what token t - 1 reads: one round of loads
      const uint32_t token = at.token(t), after = at.token(t + 1), before = at.token(t - 1);
      const int writes_now = t < end ? write_count : 0, reads_now = t > begin ? read_count : 0;
      prefetch.issue(memory, at);
      choose(t + 3);
      next.load(in, at, write_codes, after, at.first_entry(), t + 1 < end ? write_count : 0);
      if (t + 1 < end) {
        next_v = at.load(in.v + product(after, in.dim));
        next_beta = in.beta[after];
      }
      Held<Stored> held[kHeld], read[kHeld];
      const auto load_writes = [&](int first) {
        writes.load(in, at, write_codes, token, first, write_count);
        memory.load(held, at, writes.code);
      };
      const auto load_reads = [&](int first) {
        reads.load(in, at, read_codes, before, first, read_count);
        memory.load(read, at, reads.code);
      };
      memory.load(held, at, writes.code);
      memory.load(read, at, reads.code);
      Part<Stored> sum{}, reading{};
      each_group(at, writes_now, true, load_writes, [&](int) {
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) { sum.add(-writes.k[j] * writes.decay[j], widen(held[j])); }
      });
      put(old, at, at.fold(sum));
      each_group(at, reads_now, true, load_reads, [&](int) {
        HEBB_UNROLL
        for (int j = 0; j < kHeld; ++j) { reading.add(reads.q[j], widen(read[j])); }
      });
      put(readings, at, at.fold(reading));
      reads.load(in, at, read_codes, token, at.first_entry(), t < end ? read_count : 0);
      __syncthreads();
      if (t > begin && at.warp == at.warps - 1) { at.store(y + product(before, in.dim), total(readings, at), false); }
      if (t < end) {
        Pair e = total(old, at);
        e.add(1.0f, v);
        if (error != nullptr && at.warp == 0) { at.store(error + product(token, in.dim), e, false); }
        e.scale(beta);
        const Part<Stored> u = at.spread(e);
        each_group(at, write_count, write_count <= at.entries_at_once(), load_writes, [&](int) {
          HEBB_UNROLL
          for (int j = 0; j < kHeld; ++j) {
            memory.store(at, writes.code[j], overwrite(widen(held[j]), writes.decay[j], writes.k[j], u));
          }
        });
      }
      writes = next;
      v = next_v;
      beta = next_beta;
      __syncthreads();
    }
  }
}

/// The slots of rows and heads [first, first + count) by the order in time: entry i of a token is write i or read i -
/// W.
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
  int32_t *writes, *reads;

  __device__ int32_t& at(const Entries& in, int64_t token, int64_t i) const {
    return i < in.writes ? writes[token * in.writes + i] : reads[token * in.reads + i - in.writes];
  }
};

/// Keys for the sort, and the codes of slots that were written before. Row: token of a stream, column: entry of the
/// token.
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

/// Everything else from the sorted entries. A thread whose entry is the first use of a slot in a sequence goes on to
/// the first write: until then M is that of `memory`. (The longest way is that of a slot which all tokens read and
/// none writes.)
struct NumberSlots {
  Codes codes, next_use;  // next_use: null in a forward pass, as paired_read is
  int32_t *paired_read, *first_use, *order;
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
    const int64_t all = in.per_stream(), local = Split(row, in.length).quotient, begin = local * all,
                  stream = in.first + local;
    const int64_t i = row * in.width() + column,
                  row_begin = Split(stream, in.heads).quotient * in.length;  // first token of the row
    const auto entry_of = [&](int64_t sorted) { return in.split(positions[sorted] - begin); };
    const Split own = entry_of(i);
    const SparseDeltaSequence sequence = sequence_of(row_begin + own.quotient);
    const bool is_first = i == begin || keys[i - 1] != keys[i] || row_begin + entry_of(i - 1).quotient < sequence.first;
    const auto slot = static_cast<int32_t>(keys[i] - local * in.slots);
    order[stream * all + i - begin] = static_cast<int32_t>(positions[i] - begin);
    first_use[in.token(stream, own.quotient) * in.width() + own.remainder] = is_first ? slot : kNotFirst;
    const int64_t end = int64_t{sequence.first} + sequence.length - row_begin;
    bool written = !is_first;
    for (int64_t next = i; !written && next < begin + all && keys[next] == keys[i] && entry_of(next).quotient < end;
         ++next) {
      const Split e = entry_of(next);
      codes.at(in, in.token(stream, e.quotient), e.remainder) = unwritten(slot);
      written = e.remainder < in.writes;
    }
    if (paired_read != nullptr) {
      // Entries of one token and slot, a write and a read, lie side by side.
      const auto is_same = [&](int64_t a, int64_t b) {
        return a >= begin && b < begin + all && keys[a] == keys[b] && entry_of(a).quotient == entry_of(b).quotient;
      };
      const bool is_write = own.remainder < in.writes, is_paired = is_write && is_same(i, i + 1);
      const int64_t token = in.token(stream, own.quotient), next = i + (is_paired ? 2 : 1);
      const bool is_last = next >= begin + all || keys[next] != keys[i] || entry_of(next).quotient >= end;
      next_use.at(in, token, own.remainder) = is_last ? unwritten(slot) : slot;
      if (is_write) {
        paired_read[token * in.writes + own.remainder] =
            is_paired ? static_cast<int32_t>(entry_of(i + 1).remainder - in.writes) : kUnpaired;
      } else if (is_same(i - 1, i)) {
        codes.at(in, token, own.remainder) = kNoSlot;
        next_use.at(in, token, own.remainder) = kNoSlot;
      }
    }
  }
};

/// Row: head of a token, column: write. One decay a head: those of all in one row.
struct Decay {
  float* decay;
  const float *g, *write_weights;
  int64_t writes;

  __device__ void operator()(int64_t row, int64_t n) const {
    const int64_t head = writes > 1 ? row : n, at = row * writes + n;
    decay[at] = expf(write_weights != nullptr ? g[head] * write_weights[at] : g[head]);
  }
};

}  // namespace

void run(Stream& stream, const SparseDeltaIndex& a, const SparseDeltaIndexScratch& scratch) {
  const SparseDeltaUses& uses = a.uses;
  const Tensor& map = scratch.map;
  const int64_t batch = uses.order.size(0), heads = uses.order.size(1), entries = uses.order.size(2),
                streams = batch * heads;
  const int64_t writes = a.write_slots.size(2), reads = a.read_slots.size(2), length = entries / (writes + reads);
  int64_t at_once = std::clamp<int64_t>(((int64_t{1} << 31) - 1) / a.slots, 1, streams);
  while (at_once > 1 && at_once * entries * 4 + sort_scratch_bytes(at_once * entries) + 16 > map.bytes()) { --at_once; }
  auto* const keys = map.as<int32_t>();
  for (int64_t first = 0; first < streams; first += at_once) {
    const int64_t count = std::min(at_once, streams - first), keys_count = count * entries;
    int32_t* const space = keys + (keys_count + 3) / 4 * 4;
    HEBB_ASSERT((keys_count + 3) / 4 * 16 + sort_scratch_bytes(keys_count) <= map.bytes());
    const Codes codes{uses.write_codes.as<int32_t>(), uses.read_codes.as<int32_t>()};
    const Codes next_use{uses.next_write.as<int32_t>(), uses.next_read.as<int32_t>()};
    const Entries in{
        a.write_slots.as<int32_t>(), a.read_slots.as<int32_t>(), length, heads, writes, reads, a.slots, first};
    each_element("sparse_delta_keys", stream, count * length, writes + reads, GatherKeys{keys, codes, in});
    const SortedKeys sorted = sort_keys(stream, keys, keys_count, count * a.slots, space);
    each_element("sparse_delta_numbers", stream, count * length, writes + reads,
                 NumberSlots{.codes = codes,
                             .next_use = next_use,
                             .paired_read = uses.paired_read.as<int32_t>(),
                             .first_use = uses.first_use.as<int32_t>(),
                             .order = uses.order.as<int32_t>(),
                             .keys = sorted.keys,
                             .positions = sorted.positions,
                             .sequences = reinterpret_cast<const SparseDeltaSequence*>(a.sequences.as<int32_t>()),
                             .in = in,
                             .sequence_count = a.sequences.size(0)});
  }
}

void run(Stream& stream, const SparseDeltaDecay& a) {
  const int64_t heads = a.g.numel(), writes = a.decay.numel() / heads;
  each_element("sparse_delta_decay", stream, writes > 1 ? heads : 1, writes > 1 ? writes : heads,
               Decay{a.decay.as<float>(), a.g.as<float>(), a.write_weights.as<float>(), writes});
}

void run(Stream& stream, const SparseDeltaForward& a, const SparseDeltaForwardScratch& scratch) {
  const DType places = scratch.table.defined() ? scratch.table.dtype : DType::f32;
  HEBB_ASSERT(places == DType::f32 || !a.state.defined());
  dispatch_float(places, [&]<class Stored>(Stored) {
    const Inputs<Stored> in = inputs_of<Stored>(a.in, scratch.table, a.state);
    HEBB_LAUNCH(sparse_delta_forward_kernel<Stored>, blocks_for(a.in.batch * in.heads * in.slices, 1),
                threads_for<Stored>(in.writes, in.reads), 0, stream, a.y.as<float>(), a.error.as<float>(), in);
  });
}

}  // namespace hebb::HEBB_DEVICE
