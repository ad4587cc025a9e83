#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/dictionary/slot_attention_mma.cuh"

// Reads the slots of a dictionary on tensor cores, as attention/mma_forward.cu reads keys: 128 stacked queries of a
// chunk a block, 32 a warp, tiles of 64 slots (then of earlier tokens), double buffered by cp.async, one barrier a
// tile; probabilities stay in registers. The softmax goes on from the attention to tokens, which o and own_lse hold;
// with parts of the slots, the first part does. Slots are read as bf16 copies and not rounded here: half the bytes
// through L2, which is what limits chunks of few queries, and no registers between memory and shared memory. Writing a
// copy costs 2 bytes an element of the slots that a chunk changes. Where many steps are read at once, a slot comes from
// where it is or from the version that keeps what it was; versions arrive a tile ahead. FLOPs: 2 (D + Dv) a query and
// slot. Bytes: 2 (D + Dv) a slot, unit and 128 queries. Bound: tensor cores at mma.sync's rate, with L G = 128 nearly
// L2, too (128 FLOPs a byte). Width 128: 255 registers, 110 KB shared; 64: 237, 62 KB (168 registers for three blocks
// would spill); 2 blocks an SM. No spills.
namespace hebb::HEBB_DEVICE::slots {
namespace mma {
namespace {

constexpr int kRows = kTile, kRowTiles = kRows / 8;

template <int kWidth> struct Shared {
  TileOf<kQueries, kWidth> q;
  TileOf<kRows, kWidth> keys[2], values[2];
  float bias[2][kRows];
  int32_t versions[2][kRows];
  Queries queries;
  RowValues<kQueryTiles> tops[kThreads], sums[kThreads];  // of the softmax: registers are short
  Source slots;
  int64_t ring, unit, number, first_query;  // first earlier token in the document; number of unit and step
  int earlier, slot_tiles, tiles;           // earlier tokens; tiles of slots, and of both
};
static_assert(attention_mma::fits_shared_memory<Shared>());

template <int kWidth>
__device__ __forceinline__ void copy_tile(Shared<kWidth>& s, int buffer, int tile, const SlotRead<bf16>& a) {
  if (tile < s.slot_tiles) {
    copy_slots_of(s.keys[buffer], s.values[buffer], s.bias[buffer], s.versions[buffer], s.versions[buffer ^ 1], s.slots,
                  a.n, tile * kRows);
    return;
  }
  const int base = (tile - s.slot_tiles) * kRows;
  copy_lines<kRows, kWidth>({{s.keys[buffer], a.ring.k, a.n.d}, {s.values[buffer], a.ring.v, a.n.dv}}, [&](int row) {
    return base + row < s.earlier ? s.unit * a.ring.size + Split(s.ring + base + row, a.ring.size).remainder : -1;
  });
  if (threadIdx.x < kRows) { s.bias[buffer][threadIdx.x] = 0; }
}

/// Scores in units of log 2, with biases; -inf from slot `count` of the tile on.
__device__ __forceinline__ void scale_scores(float (&scores)[kQueryTiles][kRowTiles][4], const Queries& queries,
                                             const float* bias, int count) {
  float factor[2 * kQueryTiles];
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) { factor[i] = queries.factor[query_of(i)]; }
  HEBB_UNROLL
  for (int e = 0; e < 2 * kRowTiles; ++e) {
    const int row = e / 2 * 8 + lane_number() % 4 * 2 + e % 2;
    const float addend = row < count ? kLog2E * bias[row] : -INFINITY;
    HEBB_UNROLL
    for (int i = 0; i < 2 * kQueryTiles; ++i) {
      float& score = scores[i / 2][e / 2][i % 2 * 2 + e % 2];
      score = fmaf(score, factor[i], addend);
    }
  }
}

/// The softmax so far: over the tokens where `has_tokens`, else over nothing.
template <int kWidth>
__device__ __forceinline__ void begin_softmax(float (&out)[kQueryTiles][kWidth / 8][4], Shared<kWidth>& s,
                                              const SlotRead<bf16>& a, bool has_tokens) {
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    const int64_t line = has_tokens ? s.queries.line[query_of(i)] : -1;
    s.tops[threadIdx.x].of[i] = line >= 0 ? a.own_lse[line] * kLog2E : -INFINITY;
    s.sums[threadIdx.x].of[i] = line >= 0 && lane_number() % 4 == 0 ? 1.0f : 0.0f;  // a part in each lane of four
    const bf16* const o = a.o + line * a.n.dv + lane_number() % 4 * 2;
    HEBB_UNROLL
    for (int j = 0; j < kWidth / 8; ++j) {
      const uint32_t pair = line >= 0 && 8 * j < a.n.dv ? load_pair(o + 8 * j) : 0;
      out[i / 2][j][i % 2 * 2] = first_of(pair);
      out[i / 2][j][i % 2 * 2 + 1] = second_of(pair);
    }
  }
}

template <int kWidth>
__device__ __forceinline__ void write_part(const float (&out)[kQueryTiles][kWidth / 8][4], const Shared<kWidth>& s,
                                           const SlotRead<bf16>& a, int64_t part) {
  const RowValues<kQueryTiles> tops = s.tops[threadIdx.x], sums = s.sums[threadIdx.x];
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    const float sum = sum_of_quad(sums.of[i]);
    if (s.queries.line[query_of(i)] >= 0) {
      const int64_t line = a.parts.line(a.n, part, s.number, s.first_query + query_of(i));
      float* const to = a.parts.sums(line, a.n.dv) + lane_number() % 4 * 2;
      HEBB_UNROLL
      for (int j = 0; j < kWidth / 8; ++j) {
        if (8 * j < a.n.dv) { store_floats(to + 8 * j, out[i / 2][j][i % 2 * 2], out[i / 2][j][i % 2 * 2 + 1]); }
      }
      if (lane_number() % 4 == 0) { store_floats(a.parts.statistics(a.n, line), tops.of[i] * kLn2, sum); }
    }
  }
}

/// Grid: query tiles of the chunk x units and steps, parts of the slots.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) read_slots_mma_kernel(SlotRead<bf16> a, int64_t query_tiles) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const int64_t first_query = blockIdx.x % query_tiles * kQueries, number = blockIdx.x / query_tiles,
                unit = a.steps.unit(number);
  const UnitChunk at(a.n, unit, a.steps.step(number));
  const int64_t part = blockIdx.y, width = a.parts.tiles(at.step.slots) * kRows, first = part * width;
  if (!at.reads() || at.line(a.n, first_query) < 0 || (part > 0 && first >= at.step.slots)) {
    return;  // the whole block
  }
  s.queries.load(a.n, at, first_query, a.slot_temp, a.scale);
  if (threadIdx.x == 0) {
    s.slots.load(a.slots, a.old, a.n, unit, a.steps.step(number), first,
                 first + width < at.step.slots ? first + width : at.step.slots);
    const int64_t earlier = part > 0 ? 0 : a.ring.earlier(a.n, at);
    s.ring = a.ring.first(a.n, at);
    s.unit = unit;
    s.number = number;
    s.first_query = first_query;
    s.earlier = earlier > 0 ? static_cast<int>(earlier) : 0;
    s.slot_tiles = (s.slots.count + kRows - 1) / kRows;
    s.tiles = s.slot_tiles + (s.earlier + kRows - 1) / kRows;
  }
  clear_padding(s.q, a.n.d);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.keys[buffer], a.n.d);
    clear_padding(s.values[buffer], a.n.dv);
  }
  __syncthreads();
  copy_lines<kQueries, kWidth>({{s.q, a.q, a.n.d}}, [&](int row) { return s.queries.line[row]; });
  if (s.slots.old.table != nullptr) {
    copy_versions(s.versions[0], s.slots, 0);
    commit_async_copies();
    wait_async_copies<0>();
    __syncthreads();
  }
  if (s.tiles > 0) { copy_tile(s, 0, 0, a); }
  commit_async_copies();
  float out[kQueryTiles][kWidth / 8][4];
  begin_softmax(out, s, a, part == 0);
  const bf16* const q = &s.q.data[warp_number() * 16 * kQueryTiles * kStride<kWidth>];
  for (int tile = 0; tile < s.tiles; ++tile) {
    const int buffer = tile % 2;
    wait_async_copies<0>();
    __syncthreads();  // all copies are there, and nobody reads the other buffer
    if (tile + 1 < s.tiles) { copy_tile(s, buffer ^ 1, tile + 1, a); }
    commit_async_copies();
    if (tile == s.slot_tiles) {  // from here on tokens; each lane loads what its warp reads
      for (int i = lane_number(); i < 16 * kQueryTiles; i += 32) {
        s.queries.load_factor(warp_number() * 16 * kQueryTiles + i, a.n, a.ring_temp, a.scale);
      }
      __syncwarp();
    }
    float scores[kQueryTiles][kRowTiles][4] = {};
    multiply_rows<kWidth>(scores, q, s.keys[buffer].data);
    const int left = tile < s.slot_tiles ? s.slots.count - tile * kRows : s.earlier - (tile - s.slot_tiles) * kRows;
    scale_scores(scores, s.queries, s.bias[buffer], left);
    add_to_softmax(scores, 1.0f, s.tops[threadIdx.x], s.sums[threadIdx.x], out);
    uint32_t weights[kQueryTiles][kRowTiles / 2][4];
    pack_weights(weights, scores);
    add_weighted_rows<kWidth>(out, weights, s.values[buffer].data);
  }
  wait_async_copies<0>();
  if (a.parts.count > 1) {
    write_part(out, s, a, blockIdx.y);
    return;
  }
  float inverse[2 * kQueryTiles];
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    const float sum = sum_of_quad(s.sums[threadIdx.x].of[i]);
    inverse[i] = 1.0f / sum;
    const int64_t line = s.queries.line[query_of(i)];
    if (a.lse != nullptr && line >= 0 && lane_number() % 4 == 0) {
      a.lse[line] = s.tops[threadIdx.x].of[i] * kLn2 + logf(sum);
    }
  }
  const auto line = [&](int row) { return s.queries.line[warp_number() * 16 * kQueryTiles + row]; };
  write_rows<kWidth>(a.o, a.n.dv, a.n.dv, line, out, inverse, false);
}

}  // namespace
}  // namespace mma

void read_slots_mma(Stream& stream, int64_t batch, const SlotRead<bf16>& a) {
  const int64_t query_tiles = (a.n.queries() + mma::kQueries - 1) / mma::kQueries;
  const dim3 grid(blocks_for(query_tiles * a.n.units(batch) * a.steps.count, 1), static_cast<unsigned>(a.parts.count));
  attention_mma::dispatch_padded(std::max(a.n.d, a.n.dv), [&](auto width) {
    HEBB_LAUNCH((mma::read_slots_mma_kernel<width()>), grid, mma::kThreads, sizeof(mma::Shared<width()>), stream, a,
                query_tiles);
  });
}

}  // namespace hebb::HEBB_DEVICE::slots
