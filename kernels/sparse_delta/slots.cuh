#pragma once
// Slots of a sparse delta memory as one block sees them: one row of the batch, one head, 64 channels. Stored is the
// type of the private slots: float, or bf16 in bf16 runs, where each is one line of 128 bytes. All arithmetic is in
// fp32. The warps share the slots of a token.
#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/sparse_delta/codes.h"
#include "kernels/sparse_delta/scratch.h"

namespace hebb::HEBB_DEVICE::sparse_delta {

static_assert(kSparseDeltaSlice == 64);

/// How a warp works on slots. In fp32 all lanes share one, which keeps the order of sums; in bf16 eight do, 16 bytes
/// each: what is done once a slot (codes, weights, addresses, sums of dot products) then costs a quarter of the
/// instructions, which would bind a block otherwise. Few warps have few partial sums to add up, which all of them do.
template <class Stored> struct Tiling {
  static constexpr bool kNarrow = std::is_same_v<Stored, bf16>;
  static constexpr int kLanes = kNarrow ? 8 : 32, kSlots = 32 / kLanes;  // of a slot; that a warp loads at once
  static constexpr int kChannels = 64 / kLanes;                          // of a lane
  static constexpr int kHeld = kNarrow ? 2 : 4;                          // such loads under way
  static constexpr int kEntries = kHeld * kSlots, kWarps = kNarrow ? 8 : 16;
};

/// What forward and backward share; see SparseDeltaInputs. Private slots are [B, H, slices, slots, 64], carried ones
/// [B, H, slots, dim].
template <class Stored> struct Inputs {
  const float *write_weights, *read_weights, *decay, *beta, *v;
  const Stored* memory;
  const int32_t *write_slots, *read_slots, *write_codes, *read_codes, *first_use, *next_write, *next_read, *paired_read;
  const SparseDeltaSequence* sequences;
  Stored* table;
  float* state;
  int64_t tokens, slots;
  int heads, dim, writes, reads, sequence_count, slices;
  bool decays_by_key;
};

/// Takes one multiplication. A product of 64 bits would take three.
__device__ __forceinline__ int64_t product(uint32_t a, int b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint32_t>(b));
}

template <class Stored>
Inputs<Stored> inputs_of(const SparseDeltaInputs& in, const Tensor& table, const Tensor& state) {
  HEBB_ASSERT(table.defined() || state.defined());
  HEBB_ASSERT((in.v.size(0) + 4) * in.v.size(1) < int64_t{1} << 31);  // tokens ahead, too, have 32-bit numbers
  const auto small = [](int64_t n) { return static_cast<int>(n); };
  return {.write_weights = in.write_weights.as<float>(),
          .read_weights = in.read_weights.as<float>(),
          .decay = in.decay.as<float>(),
          .beta = in.beta.as<float>(),
          .v = in.v.as<float>(),
          .memory = in.memory.as<Stored>(),
          .write_slots = in.write_slots.as<int32_t>(),
          .read_slots = in.read_slots.as<int32_t>(),
          .write_codes = in.uses.write_codes.as<int32_t>(),
          .read_codes = in.uses.read_codes.as<int32_t>(),
          .first_use = in.uses.first_use.as<int32_t>(),
          .next_write = in.uses.next_write.as<int32_t>(),
          .next_read = in.uses.next_read.as<int32_t>(),
          .paired_read = in.uses.paired_read.as<int32_t>(),
          .sequences = reinterpret_cast<const SparseDeltaSequence*>(in.sequences.as<int32_t>()),
          .table = table.as<Stored>(),
          .state = state.as<float>(),
          .tokens = in.v.size(0),
          .slots = in.slots,
          .heads = small(in.v.size(1)),
          .dim = small(in.v.size(2)),
          .writes = small(in.write_weights.size(2)),
          .reads = small(in.read_weights.size(2)),
          .sequence_count = small(in.sequences.size(0)),
          .slices = small((in.v.size(2) + kSparseDeltaSlice - 1) / kSparseDeltaSlice),
          .decays_by_key = in.decays_by_key()};
}

/// A block has as many warps as share a token's slots.
template <class Stored> unsigned threads_for(int64_t writes, int64_t reads) {
  const int64_t most = writes > reads ? writes : reads,
                warps = (most + Tiling<Stored>::kEntries - 1) / Tiling<Stored>::kEntries;
  return static_cast<unsigned>(32 * (warps < Tiling<Stored>::kWarps ? warps : Tiling<Stored>::kWarps));
}

/// Finds the first of the ascending sequences that does not lie before `row` of the batch.
__device__ __forceinline__ int64_t first_sequence(const SparseDeltaSequence* sequences, int64_t count, int64_t row) {
  return first_where(count, [&](int64_t i) { return sequences[i].row >= row; });
}

/// Channels of a lane.
template <int C> struct alignas(8) Channels {
  float x[C];

  __device__ __forceinline__ void add(float w, const Channels& o) {
    HEBB_UNROLL
    for (int i = 0; i < C; ++i) { x[i] += w * o.x[i]; }
  }
  __device__ __forceinline__ void scale(float w) {
    HEBB_UNROLL
    for (int i = 0; i < C; ++i) { x[i] *= w; }
  }
  /// The lane's part of a dot product.
  __device__ __forceinline__ float times(const Channels& o) const {
    float sum = x[0] * o.x[0];
    HEBB_UNROLL
    for (int i = 1; i < C; ++i) { sum += x[i] * o.x[i]; }
    return sum;
  }
};

/// A lane holds two channels of a vector that belongs to a token. Of a slot it holds a part.
using Pair = Channels<2>;
template <class Stored> using Part = Channels<Tiling<Stored>::kChannels>;
/// The same as stored.
template <class Stored> using Held = std::conditional_t<std::is_same_v<Stored, bf16>, Word4, Pair>;

__device__ __forceinline__ Pair widen(const Pair& p) { return p; }
__device__ __forceinline__ Channels<8> widen(const Word4& bits) {
  Channels<8> out;
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.x[2 * i] = __uint_as_float(bits.word[i] << 16);
    out.x[2 * i + 1] = __uint_as_float(bits.word[i] & 0xFFFF0000u);
  }
  return out;
}
__device__ __forceinline__ Pair narrow(const Pair& p) { return p; }
__device__ __forceinline__ Word4 narrow(const Channels<8>& p) {
  Word4 bits;
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) { bits.word[i] = pack_bf16(p.x[2 * i], p.x[2 * i + 1]); }
  return bits;
}

/// decay m + k u, as stored in place of m. No compiler may choose here which product it fuses: both passes must round
/// alike, or the backward pass would differentiate about another M.
template <int C>
__device__ __forceinline__ auto overwrite(const Channels<C>& m, float decay, float k, const Channels<C>& u) {
  Channels<C> out;
  HEBB_UNROLL
  for (int i = 0; i < C; ++i) { out.x[i] = fmaf(k, u.x[i], decay * m.x[i]); }
  return narrow(out);
}

/// Sums of K numbers over lanes that differ in bits kHigh to kLow of their number, by a butterfly like that of
/// warp_sum. At each bit a lane goes on with half of the numbers while there are more: with the upper half where the
/// bit is set.
template <int kHigh, int kLow, int K> __device__ __forceinline__ void sum_over_lanes(float (&x)[K]) {
  HEBB_UNROLL
  for (int n = K / 2, bits = kHigh; bits >= kLow; n /= 2, bits /= 2) {
    if (n == 0) { x[0] += __shfl_xor_sync(kAllLanes, x[0], bits); }
    HEBB_UNROLL
    for (int i = 0; i < n; ++i) {
      const bool upper = (threadIdx.x & static_cast<unsigned>(bits)) != 0;
      const float gives = upper ? x[i] : x[i + n], keeps = upper ? x[i + n] : x[i];
      x[i] = keeps + __shfl_xor_sync(kAllLanes, gives, bits);
    }
  }
}

/// What a block works on: a slice of the channels of a sequence and head; and the part of its thread.
template <class Stored> struct BlockSlice {
  using Tile = Tiling<Stored>;

  int heads, row, head, slice, channel;  // channel: the slice's first
  int lane, warp, warps;
  bool has[2], has_part, is_wide;  // channels of the pair; of the part of a slot (whole in bf16); more than 32 in all

  __device__ explicit BlockSlice(const Inputs<Stored>& in)
      : heads(in.heads),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(static_cast<int>(threadIdx.x / 32)),
        warps(static_cast<int>(blockDim.x / 32)) {
    const Split stream(blockIdx.x, in.slices), head_of_row(stream.quotient, in.heads);
    row = static_cast<int>(head_of_row.quotient);
    head = static_cast<int>(head_of_row.remainder);
    slice = static_cast<int>(stream.remainder);
    channel = slice * static_cast<int>(kSparseDeltaSlice);
    has[0] = channel + offset(0) < in.dim;
    has[1] = channel + offset(1) < in.dim;
    has_part = channel + part_offset(0) < in.dim;
    is_wide = channel + 32 < in.dim;
  }
  /// The head of token t of the batch, below 2^31.
  __device__ __forceinline__ uint32_t token(int t) const { return static_cast<uint32_t>(t * heads + head); }
  /// Where the lane's pair lies in the slice. In bf16 these are the channels that fold() leaves.
  __device__ __forceinline__ int offset(int i) const {
    return Tile::kNarrow ? lane % 8 * 8 + lane / 8 * 2 + i : lane + 32 * i;
  }
  __device__ __forceinline__ int part_offset(int i) const { return Tile::kNarrow ? lane % 8 * 8 + i : lane + 32 * i; }

  /// The first of the warp's entries of a token, the number of the lane's j-th, and how many entries the warps hold
  /// together.
  __device__ __forceinline__ int first_entry() const { return warp * Tile::kEntries; }
  __device__ __forceinline__ int entry(int first, int j) const {
    return first + j * Tile::kSlots + lane / Tile::kLanes;
  }
  __device__ __forceinline__ int entries_at_once() const { return warps * Tile::kEntries; }

  /// `values` points to the first channel of a head.
  __device__ __forceinline__ Pair load(const float* values) const {
    const float* const own = values + channel;
    return {{has[0] ? own[offset(0)] : 0.0f, has[1] ? own[offset(1)] : 0.0f}};
  }
  __device__ __forceinline__ void store(float* values, const Pair& p, bool accumulate) const {
    float* const own = values + channel;
    HEBB_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (has[i]) { write(own[offset(i)], p.x[i], accumulate); }
    }
  }
  /// `own` points to the first channel of the slice.
  __device__ __forceinline__ void add(float* own, const Part<Stored>& p) const {
    HEBB_UNROLL
    for (int i = 0; i < Tile::kChannels; ++i) {
      if (channel_exists(i)) { own[part_offset(i)] += p.x[i]; }
    }
  }
  /// The pairs of a vector as parts, and the sum of the parts of all slots of a warp as pairs.
  __device__ __forceinline__ Part<Stored> spread(const Pair& p) const {
    if constexpr (Tile::kNarrow) {
      Channels<8> out;
      HEBB_UNROLL
      for (int i = 0; i < 8; ++i) { out.x[i] = __shfl_sync(kAllLanes, p.x[i % 2], lane % 8 + i / 2 * 8); }
      return out;
    } else {
      return p;
    }
  }
  __device__ __forceinline__ Pair fold(Part<Stored> sum) const {
    if constexpr (Tile::kNarrow) { sum_over_lanes<16, 8>(sum.x); }
    return {{sum.x[0], sum.x[1]}};
  }
  /// Loads the slice of a slot, or zeros where none `exists`.
  __device__ __forceinline__ Held<Stored> load_slot(const Stored* slot, bool exists) const {
    if constexpr (Tile::kNarrow) {
      return exists && has_part ? load_16_bytes(slot + part_offset(0)) : Word4{};
    } else {
      return {{exists && has[0] ? slot[offset(0)] : 0.0f, exists && has[1] ? slot[offset(1)] : 0.0f}};
    }
  }
  __device__ __forceinline__ void store_slot(Stored* slot, bool exists, const Held<Stored>& value) const {
    if constexpr (Tile::kNarrow) {
      if (exists && has_part) { store_16_bytes_global(slot + part_offset(0), value); }
    } else {
      HEBB_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (exists && has[i]) { slot[offset(i)] = value.x[i]; }
      }
    }
  }

 private:
  __device__ __forceinline__ bool channel_exists(int i) const { return Tile::kNarrow ? has_part : has[i % 2]; }
};

/// The slots of one sequence and head, the block's slice of them, by code.
template <class Stored> struct Memory {
  Stored* table;
  const Stored* initial;
  uint32_t slot_bytes, initial_bytes;  // from slot to slot
  int32_t lowest = 0;                  // codes from here on have a slot to read; of others all is zero

  /// M.
  __device__ Memory(const Inputs<Stored>& in, const BlockSlice<Stored>& at, bool carried) : Memory(in, at) {
    if (in.memory != nullptr) {
      initial = in.memory + at.head * in.slots * in.dim + at.channel;
      lowest = kNoSlot + 1;
    }
    if constexpr (std::is_same_v<Stored, float>) {
      if (carried) {
        table = in.state + static_cast<int64_t>(at.row * in.heads + at.head) * in.slots * in.dim + at.channel;
        slot_bytes = initial_bytes;
      }
    }
  }
  /// G.
  __device__ Memory(const Inputs<Stored>& in, const BlockSlice<Stored>& at)
      : table(in.table + (static_cast<int64_t>(at.row * in.heads + at.head) * in.slices + at.slice) * in.slots *
                             kSparseDeltaSlice),
        initial(table),
        slot_bytes(kSparseDeltaSlice * sizeof(Stored)),
        initial_bytes(static_cast<uint32_t>(in.dim) * static_cast<uint32_t>(sizeof(Stored))) {}

  __device__ __forceinline__ Stored* slot_of(int32_t code) const {
    const auto slot = static_cast<uint64_t>(static_cast<uint32_t>(place_of(code)));
    return reinterpret_cast<Stored*>(reinterpret_cast<char*>(table) + slot * slot_bytes);
  }
  __device__ __forceinline__ bool has(int32_t code) const { return code >= lowest; }
  /// Where the numbers of a code that it has are.
  __device__ __forceinline__ const Stored* source(int32_t code) const {
    const bool is_own = is_written(code);
    const auto slot = static_cast<uint64_t>(static_cast<uint32_t>(place_of(code)));
    const auto* const first = reinterpret_cast<const char*>(is_own ? table : initial);
    return reinterpret_cast<const Stored*>(first + slot * (is_own ? slot_bytes : initial_bytes));
  }
  __device__ __forceinline__ void load(Held<Stored> (&held)[Tiling<Stored>::kHeld], const BlockSlice<Stored>& at,
                                       const int32_t (&codes)[Tiling<Stored>::kHeld]) const {
    HEBB_UNROLL
    for (int j = 0; j < Tiling<Stored>::kHeld; ++j) { held[j] = at.load_slot(source(codes[j]), has(codes[j])); }
  }
  /// Writes to the slot of a code. kNoSlot has none.
  __device__ __forceinline__ void store(const BlockSlice<Stored>& at, int32_t code, const Held<Stored>& value) const {
    at.store_slot(slot_of(code), code != kNoSlot, value);
  }
};

/// Asks for slots, one a thread, while other tokens are computed. Those of two tokens are on their way into L2: latency
/// and bandwidth of HBM want as many.
class Prefetch {
 public:
  /// Takes the codes of a token for issue(). `first_use` has the entries that add to sums, or is null.
  template <class Stored>
  __device__ __forceinline__ void choose(const Inputs<Stored>& in, bool exists, uint32_t token, const int32_t* writes,
                                         const int32_t* reads, const int32_t* first_use = nullptr) {
    code_ = kNoSlot;
    first_use_ = kNotFirst;
    const auto i = static_cast<int>(threadIdx.x);
    if (exists && i < in.writes + in.reads) {
      code_ =
          i < in.writes ? (writes + product(token, in.writes))[i] : (reads + product(token, in.reads))[i - in.writes];
      first_use_ = first_use != nullptr ? (first_use + product(token, in.writes + in.reads))[i] : kNotFirst;
    }
  }
  /// `sums` is the slice of the head's slot 0 in [slots, dim].
  template <class Stored>
  __device__ __forceinline__ void issue(const Memory<Stored>& memory, const BlockSlice<Stored>& at,
                                        const float* sums = nullptr, int dim = 0) const {
    if (memory.has(code_)) {
      const Stored* const line = memory.source(code_);
      prefetch_line(line);
      if constexpr (sizeof(Stored) == 4) { prefetch_line(at.is_wide ? line + 32 : line); }
    }
    if (sums != nullptr && first_use_ >= 0) {
      const float* const line = sums + product(static_cast<uint32_t>(first_use_), dim);
      prefetch_line(line);
      prefetch_line(at.is_wide ? line + 32 : line);
    }
  }

 private:
  int32_t code_ = kNoSlot, first_use_ = kNotFirst;
};

/// Loads the lane's entries of a list of `count`. Past its end they are `none`.
template <class Stored, class T>
__device__ __forceinline__ void load_entries(T (&out)[Tiling<Stored>::kHeld], const BlockSlice<Stored>& at,
                                             const T* list, int first, int count, T none) {
  HEBB_UNROLL
  for (int j = 0; j < Tiling<Stored>::kHeld; ++j) {
    const int entry = at.entry(first, j);
    out[j] = entry < count ? list[entry] : none;
  }
}

/// The lane's entries of the writes of a token.
template <class Stored> struct Writes {
  static constexpr int kHeld = Tiling<Stored>::kHeld;
  int32_t code[kHeld];
  float k[kHeld], decay[kHeld];

  /// `count` is 0 where there is no such token.
  __device__ __forceinline__ void load(const Inputs<Stored>& in, const BlockSlice<Stored>& at, const int32_t* codes,
                                       uint32_t token, int first, int count) {
    const int64_t begin = product(token, in.writes);
    load_entries(code, at, codes + begin, first, count, kNoSlot);
    load_entries(k, at, in.write_weights + begin, first, count, 0.0f);
    if (in.decays_by_key) {
      load_entries(decay, at, in.decay + begin, first, count, 0.0f);
    } else {
      const float all = count > 0 ? in.decay[token] : 0.0f;
      HEBB_UNROLL
      for (int j = 0; j < kHeld; ++j) { decay[j] = all; }
    }
  }
};

/// The lane's entries of the reads of a token.
template <class Stored> struct Reads {
  int32_t code[Tiling<Stored>::kHeld];
  float q[Tiling<Stored>::kHeld];

  __device__ __forceinline__ void load(const Inputs<Stored>& in, const BlockSlice<Stored>& at, const int32_t* codes,
                                       uint32_t token, int first, int count) {
    const int64_t begin = product(token, in.reads);
    load_entries(code, at, codes + begin, first, count, kNoSlot);
    load_entries(q, at, in.read_weights + begin, first, count, 0.0f);
  }
};

/// Calls load(first) and use(first) for the warp's groups of a token's `count` entries. Where the first group
/// `is_loaded`, it is only used.
template <class Stored, class Load, class Use>
__device__ __forceinline__ void each_group(const BlockSlice<Stored>& at, int count, bool is_loaded, Load&& load,
                                           Use&& use) {
  for (int first = at.first_entry(); first < count; first += at.entries_at_once()) {
    if (!is_loaded || first != at.first_entry()) { load(first); }
    use(first);
  }
}

/// Writes the sum of dots[j] over the lanes of its slot to the place of entry j. A place below 0 is none.
template <class Stored>
__device__ __forceinline__ void store_dots(float* to, const BlockSlice<Stored>& at,
                                           float (&dots)[Tiling<Stored>::kHeld],
                                           const int (&places)[Tiling<Stored>::kHeld]) {
  constexpr int kLanes = Tiling<Stored>::kLanes, kEach = kLanes / Tiling<Stored>::kHeld;
  sum_over_lanes<kLanes / 2, 1>(dots);
  const int own = at.lane % kLanes / kEach;  // the number that the lane was left with
  int place = places[0];
  HEBB_UNROLL
  for (int j = 1; j < Tiling<Stored>::kHeld; ++j) { place = own == j ? places[j] : place; }
  if (at.lane % kEach == 0 && place >= 0) { to[place] = dots[0]; }
}

/// Partial sums of the warps, one pair of channels a lane.
template <class Stored> using Partial = Pair[Tiling<Stored>::kWarps][32];

template <class Stored>
__device__ __forceinline__ void put(Partial<Stored>& partial, const BlockSlice<Stored>& at, const Pair& sum) {
  partial[at.warp][at.lane] = sum;
}

/// The sum over the warps, in their order; every thread may ask for it after a barrier.
template <class Stored>
__device__ __forceinline__ Pair total(const Partial<Stored>& partial, const BlockSlice<Stored>& at) {
  Pair sum{};
  for (int w = 0; w < at.warps; ++w) {
    const Pair part = partial[w][at.lane];
    sum.x[0] += part.x[0];
    sum.x[1] += part.x[1];
  }
  return sum;
}

}  // namespace hebb::HEBB_DEVICE::sparse_delta
