#include "kernels/dictionary/slot_attention_mma.cuh"
#include "kernels/dictionary/undo.cuh"

// Gradients of reading the slots of a dictionary on tensor cores. One kernel is for the queries, one for keys and
// values of the slots. Each computes the probabilities again, 7 products of a pair instead of 5: every sum has one
// owner and a fixed order. lse in units of log 2 and delta = d_o . o are those of the attention to tokens.
// FLOPs a query and slot: 4 D + 2 Dv and 4 (D + Dv). Queries: 128 a block, 32 a warp, tiles of 32 slots; with parts of
// the slots a second kernel adds the parts. Bound: as the forward pass. Slots: 64 a block, 16 a warp, which holds the
// gradients of both in registers from beginning to end; tiles of 32 queries. Where the block can take back what a step
// did to its slots (Undo), it scans all steps of a launch; a slot that a step touched passes through memory.
// Bound: shared memory; with a launch a step and L G = 128 the gradients in HBM, 8
// (D + Dv) bytes a slot and unit. Width 128: 252 (queries) and 246 registers, 107 and 70 KB shared, 2 blocks an SM; 64:
// 168 and 3 blocks, 194 and 2. No spills.
namespace hebb::HEBB_DEVICE::slots {
namespace mma {
namespace {

// ---- gradients of queries

namespace queries {

constexpr int kRows = 32, kRowTiles = kRows / 8;

template <int kWidth> struct Shared {
  TileOf<kQueries, kWidth> q, d_o;
  TileOf<kRows, kWidth> keys[2], values[2];
  float bias[2][kRows];
  int32_t versions[2][kRows];
  float lse[kQueries], delta[kQueries];
  Queries queries;
  Source slots;
  int64_t number, first_query;  // of unit and step
};
static_assert(attention_mma::fits_shared_memory<Shared>());

/// Scores and d_o . v become the gradients at the scores.
template <int kWidth>
__device__ __forceinline__ void weigh(float (&scores)[kQueryTiles][kRowTiles][4],
                                      const float (&d_p)[kQueryTiles][kRowTiles][4], const Shared<kWidth>& s,
                                      const float* bias, int count) {
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    const int query = query_of(i);
    const float factor = s.queries.factor[query], lse = s.lse[query], delta = s.delta[query];
    HEBB_UNROLL
    for (int e = 0; e < 2 * kRowTiles; ++e) {
      const int row = e / 2 * 8 + lane_number() % 4 * 2 + e % 2, at = i % 2 * 2 + e % 2;
      float& score = scores[i / 2][e / 2][at];
      const float p = exp2_fast(fmaf(score, factor, fmaf(bias[row], kLog2E, -lse)));
      score = row < count ? p * (d_p[i / 2][e / 2][at] - delta) : 0.0f;
    }
  }
}

/// d_q += temperature x sums of one query, and along = q . sums.
template <int kWidth>
__device__ __forceinline__ void write_gradients(float (&sums)[kQueryTiles][kWidth / 8][4], const Shared<kWidth>& s,
                                                const SlotReadBackward<bf16>& a) {
  float temps[2 * kQueryTiles];
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    const int query = query_of(i);
    const int64_t line = s.queries.line[query];
    temps[i] = line >= 0 && a.slot_temp != nullptr ? a.scale * a.slot_temp[line % a.n.heads] : a.scale;
    float along = 0;
    HEBB_UNROLL
    for (int j = 0; j < kWidth / 8; ++j) {
      const uint32_t pair = load_pair(&s.q.data[query * kStride<kWidth> + 8 * j + lane_number() % 4 * 2]);
      along += first_of(pair) * sums[i / 2][j][i % 2 * 2] + second_of(pair) * sums[i / 2][j][i % 2 * 2 + 1];
    }
    along = sum_of_quad(along);
    if (a.temp_sums != nullptr && line >= 0 && lane_number() % 4 == 0) { a.temp_sums[line] = a.scale * along; }
  }
  const auto line = [&](int row) { return s.queries.line[warp_number() * 16 * kQueryTiles + row]; };
  write_rows<kWidth>(a.d_q, a.n.d, a.n.d, line, sums, temps, true);
}

template <int kWidth>
__device__ __forceinline__ void write_part(const float (&sums)[kQueryTiles][kWidth / 8][4], const Shared<kWidth>& s,
                                           const SlotReadBackward<bf16>& a, int64_t part) {
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    if (s.queries.line[query_of(i)] >= 0) {
      float* const to =
          a.parts.sums(a.parts.line(a.n, part, s.number, s.first_query + query_of(i)), a.n.d) + lane_number() % 4 * 2;
      HEBB_UNROLL
      for (int j = 0; j < kWidth / 8; ++j) {
        if (8 * j < a.n.d) { store_floats(to + 8 * j, sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]); }
      }
    }
  }
}

}  // namespace queries

/// Grid: query tiles of the chunk x units and steps, parts of the slots.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth <= 64 ? 3 : 2)
    slot_queries_mma_kernel(SlotReadBackward<bf16> a, int64_t query_tiles) {
  using namespace queries;
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<queries::Shared<kWidth>*>(raw);
  const int64_t first_query = blockIdx.x % query_tiles * kQueries, number = blockIdx.x / query_tiles,
                unit = a.steps.unit(number);
  const UnitChunk at(a.n, unit, a.steps.step(number));
  const int64_t width = a.parts.tiles(at.step.slots) * kTile, first = blockIdx.y * width;
  const int64_t end = first + width < at.step.slots ? first + width : at.step.slots;
  if (!at.reads() || at.line(a.n, first_query) < 0 || first >= end) {
    return;  // the whole block
  }
  s.queries.load(a.n, at, first_query, a.slot_temp, a.scale);
  for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kThreads) {  // lines that the thread itself loaded
    const int64_t line = s.queries.line[i];
    s.lse[i] = line >= 0 ? a.statistics[line] : INFINITY;
    s.delta[i] = line >= 0 ? a.statistics[a.queries + line] : 0.0f;
  }
  if (threadIdx.x == 0) {
    s.slots.load(a.slots, a.old, a.n, unit, a.steps.step(number), first, end);
    s.number = number;
    s.first_query = first_query;
  }
  clear_padding(s.q, a.n.d);
  clear_padding(s.d_o, a.n.dv);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.keys[buffer], a.n.d);
    clear_padding(s.values[buffer], a.n.dv);
  }
  __syncthreads();
  copy_lines<kQueries, kWidth>({{s.q, a.q, a.n.d}, {s.d_o, a.d_o, a.n.dv}},
                               [&](int row) { return s.queries.line[row]; });
  if (s.slots.old.table != nullptr) {
    copy_versions(s.versions[0], s.slots, 0);
    commit_async_copies();
    wait_async_copies<0>();
    __syncthreads();
  }
  copy_slots_of(s.keys[0], s.values[0], s.bias[0], s.versions[0], s.versions[1], s.slots, a.n, 0);
  commit_async_copies();
  const int own = warp_number() * 16 * kQueryTiles * kStride<kWidth>;
  float sums[kQueryTiles][kWidth / 8][4] = {};
  for (int base = 0; base < s.slots.count; base += kRows) {
    const int buffer = base / kRows % 2;
    wait_async_copies<0>();
    __syncthreads();  // all copies are there, and nobody reads the other buffer
    if (base + kRows < s.slots.count) {
      copy_slots_of(s.keys[buffer ^ 1], s.values[buffer ^ 1], s.bias[buffer ^ 1], s.versions[buffer ^ 1],
                    s.versions[buffer], s.slots, a.n, base + kRows);
    }
    commit_async_copies();
    float scores[kQueryTiles][kRowTiles][4] = {}, d_p[kQueryTiles][kRowTiles][4] = {};
    multiply_rows<kWidth>(scores, s.q.data + own, s.keys[buffer].data);
    multiply_rows<kWidth>(d_p, s.d_o.data + own, s.values[buffer].data);
    weigh(scores, d_p, s, s.bias[buffer], s.slots.count - base);
    uint32_t weights[kQueryTiles][kRowTiles / 2][4];
    pack_weights(weights, scores);
    add_weighted_rows<kWidth>(sums, weights, s.keys[buffer].data);
  }
  wait_async_copies<0>();
  if (a.parts.count > 1) {
    queries::write_part(sums, s, a, blockIdx.y);
  } else {
    write_gradients(sums, s, a);
  }
}

/// Adds the parts of a query's gradient. A warp has one query of one unit and step.
struct JoinGradients {
  SlotReadBackward<bf16> a;

  __device__ void operator()(int64_t item, int lane) const {
    const int64_t number = item / a.n.queries();
    const UnitChunk at(a.n, a.steps.unit(number), a.steps.step(number));
    const int64_t query = item % a.n.queries(), line = at.reads() && at.step.slots > 0 ? at.line(a.n, query) : -1;
    if (line < 0) { return; }
    const float temp = a.slot_temp != nullptr ? a.slot_temp[line % a.n.heads] : 1.0f;
    float along = 0;
    for (int64_t c = lane; c < a.n.d; c += 32) {
      float sum = 0;
      a.parts.each(a.n, at.step.slots, number, query, [&](int64_t of) { sum += a.parts.sums(of, a.n.d)[c]; });
      sum *= a.scale;
      along += to_float(a.q[line * a.n.d + c]) * sum;
      write(a.d_q[line * a.n.d + c], temp * sum, true);
    }
    along = warp_sum(along);
    if (a.temp_sums != nullptr && lane == 0) { a.temp_sums[line] = along; }
  }
};

// ---- gradients of slots

namespace gradients {

constexpr int kRows = kTile, kTileQueries = 32, kTiles = kTileQueries / 8;
static_assert(kRows == 16 * kWarps);

template <int kWidth> struct Shared {
  TileOf<kRows, kWidth> keys, values;
  TileOf<kTileQueries, kWidth> q[2], d_o[2];
  float bias[kRows];
  Source slots;
  float lse[2][kTileQueries], delta[2][kTileQueries], temp[2][kTileQueries];
  int64_t line[2][kTileQueries];  // -1: no query
};
static_assert(attention_mma::fits_shared_memory<Shared>());

template <int kWidth>
__device__ __forceinline__ void copy_queries(Shared<kWidth>& s, int buffer, const SlotReadBackward<bf16>& a) {
  copy_lines<kTileQueries, kWidth>({{s.q[buffer], a.q, a.n.d}, {s.d_o[buffer], a.d_o, a.n.dv}},
                                   [&](int row) { return s.line[buffer][row]; });
  const int i = static_cast<int>(threadIdx.x);
  if (i < kTileQueries) {
    const int64_t line = s.line[buffer][i] < 0 ? 0 : s.line[buffer][i];
    const int bytes = s.line[buffer][i] < 0 ? 0 : 4;
    copy_async_4(&s.lse[buffer][i], a.statistics + line, bytes);
    copy_async_4(&s.delta[buffer][i], a.statistics + a.queries + line, bytes);
    if (a.slot_temp != nullptr) {
      copy_async_4(&s.temp[buffer][i], a.slot_temp + line % a.n.heads, bytes);
    } else {
      s.temp[buffer][i] = 1;
    }
  }
}

/// Scores become probabilities, and d_o . v the gradients at the products q . k; both 0 for slots from `count` on,
/// which may hold anything. Queries that do not exist have zeros in q and d_o.
template <int kWidth>
__device__ __forceinline__ void weigh(float (&scores)[1][kTiles][4], float (&d_scores)[1][kTiles][4],
                                      const Shared<kWidth>& s, int buffer, float scale, int count) {
  const int first = warp_number() * 16 + lane_number() / 4;
  const bool exists[2] = {first < count, first + 8 < count};
  const float bias[2] = {kLog2E * s.bias[first], kLog2E * s.bias[first + 8]};
  HEBB_UNROLL
  for (int e = 0; e < 2 * kTiles; ++e) {
    const int query = e / 2 * 8 + lane_number() % 4 * 2 + e % 2;
    const float lse = s.lse[buffer][query], delta = s.delta[buffer][query], factor = scale * s.temp[buffer][query];
    HEBB_UNROLL
    for (int i = 0; i < 2; ++i) {
      float &score = scores[0][e / 2][2 * i + e % 2], &d_score = d_scores[0][e / 2][2 * i + e % 2];
      score = exists[i] ? exp2_fast(fmaf(score, factor * kLog2E, bias[i] - lse)) : 0.0f;
      d_score = exists[i] ? factor * score * (d_score - delta) : 0.0f;
    }
  }
}

/// The warp's gradients [16 slots, width] from memory or back to it, of slots of the tile that are `wanted`.
template <int kWidth, class Wanted, class Access>
__device__ __forceinline__ void each_pair(float (&sums)[1][kWidth / 8][4], float* of_slots, int width, Wanted&& wanted,
                                          Access&& access) {
  HEBB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = warp_number() * 16 + 8 * i + lane_number() / 4;
    const bool is_wanted = wanted(row);
    float* const from = of_slots + int64_t{row} * width + lane_number() % 4 * 2;
    HEBB_UNROLL
    for (int j = 0; j < kWidth / 8; ++j) {
      if (is_wanted && 8 * j < width) { access(sums[0][j][2 * i], sums[0][j][2 * i + 1], from + 8 * j); }
    }
  }
}

}  // namespace gradients

/// What a warp's slots keep while the block scans steps: their gradients stay in registers.
template <int kWidth> struct Sums {
  float keys[1][kWidth / 8][4] = {}, values[1][kWidth / 8][4] = {};

  /// f(sums, width, gradients of the tile's slots in memory) for keys and for values.
  template <class F> __device__ __forceinline__ void each(const SlotReadBackward<bf16>& a, int64_t first_row, F&& f) {
    f(keys, a.n.d, a.d_keys + first_row * a.n.d);
    f(values, a.n.dv, a.d_values + first_row * a.n.dv);
  }
};

/// Takes back what a step did to the warp's slots, and brings them and their biases up to date in shared memory.
template <int kWidth, class Undo>
__device__ __forceinline__ void undo_slots(Sums<kWidth>& sums, gradients::Shared<kWidth>& s,
                                           const SlotReadBackward<bf16>& a, const Undo& undo, int64_t unit,
                                           int64_t step, int64_t base, int slots_of_tile) {
  using namespace gradients;
  const int own = warp_number() * 16, lane = lane_number();
  const int32_t place = lane < 16 && own + lane < slots_of_tile ? undo.place_of(unit, step, base + own + lane) : -1;
  const unsigned touched = __ballot_sync(kAllLanes, place >= 0);
  if (touched == 0) {
    return;  // the whole warp
  }
  const int64_t first_row = unit * a.slots.room + base;
  const auto is_touched = [&](int row) { return (touched >> (row - own) & 1) != 0; };
  sums.each(a, first_row, [&](auto& of, int width, float* memory) {
    each_pair<kWidth>(of, memory, width, is_touched, [](float x, float y, float* to) { store_floats(to, x, y); });
  });
  __syncwarp();
  for (int i = 0; i < 16; ++i) {
    const int32_t first = __shfl_sync(kAllLanes, place, i, 32);
    if (first < 0) { continue; }
    const int64_t row = first_row + own + i;
    undo(unit, step, first, lane);
    __syncwarp();
    for (int c = lane; c < a.n.d; c += 32) {
      s.keys.data[(own + i) * kStride<kWidth> + c] = a.slots.keys[row * a.n.d + c];
    }
    for (int c = lane; c < a.n.dv; c += 32) {
      s.values.data[(own + i) * kStride<kWidth> + c] = a.slots.values[row * a.n.dv + c];
    }
    if (lane == 0) { s.bias[own + i] = a.slots.bias[row]; }
  }
  __syncwarp();
  sums.each(a, first_row, [&](auto& of, int width, float* memory) {
    each_pair<kWidth>(of, memory, width, is_touched,
                      [](float& x, float& y, const float* from) { load_floats(x, y, from); });
  });
}

/// Adds the gradients of a step's readout. Ends with a barrier.
template <int kWidth>
__device__ __forceinline__ void add_gradients(Sums<kWidth>& sums, gradients::Shared<kWidth>& s,
                                              const SlotReadBackward<bf16>& a, const UnitChunk& at, int count) {
  using namespace gradients;
  const int own = warp_number() * 16 * kStride<kWidth>;
  const auto load_lines = [&](int tile) {
    if (threadIdx.x < kTileQueries) {
      s.line[tile % 2][threadIdx.x] = at.line(a.n, int64_t{tile} * kTileQueries + threadIdx.x);
    }
  };
  load_lines(0);
  load_lines(1);
  __syncthreads();
  copy_queries(s, 0, a);
  commit_async_copies();
  bool goes_on = true;
  for (int tile = 0; goes_on; ++tile) {
    const int buffer = tile % 2;
    wait_async_copies<0>();
    __syncthreads();  // all copies and the next tile's lines are there, and nobody reads the other buffer
    goes_on = s.line[buffer ^ 1][0] >= 0;
    if (goes_on) { copy_queries(s, buffer ^ 1, a); }
    commit_async_copies();
    load_lines(tile + 2);
    float scores[1][kTiles][4] = {}, d_scores[1][kTiles][4] = {};
    multiply_rows<kWidth>(scores, s.keys.data + own, s.q[buffer].data);
    multiply_rows<kWidth>(d_scores, s.values.data + own, s.d_o[buffer].data);
    weigh(scores, d_scores, s, buffer, a.scale, count);
    uint32_t weights[1][kTiles / 2][4];
    pack_weights(weights, scores);
    add_weighted_rows<kWidth>(sums.values, weights, s.d_o[buffer].data);
    pack_weights(weights, d_scores);
    add_weighted_rows<kWidth>(sums.keys, weights, s.q[buffer].data);
  }
  wait_async_copies<0>();
  __syncthreads();  // lines and queries are replaced
}

/// Grid: tiles of slots x units. A block scans the steps in reverse with its slots; nobody else has them, nor the items
/// that entered them.
template <int kWidth, class Undo>
__global__ void __launch_bounds__(kThreads, 2)
    slot_gradients_mma_kernel(SlotReadBackward<bf16> a, Undo undo, int64_t slot_tiles) {
  using namespace gradients;
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<gradients::Shared<kWidth>*>(raw);
  const int64_t base = blockIdx.x % slot_tiles * kRows, unit = blockIdx.x / slot_tiles, left = a.slots.room - base;
  const int slots_of_tile = static_cast<int>(left < kRows ? left : kRows);
  if (!Undo::kUndoes) {
    const UnitChunk at(a.n, unit, a.steps.first);
    if (!at.reads() || base >= at.step.slots) {
      return;  // the whole block
    }
  }
  if (threadIdx.x == 0) { s.slots.load(a.slots, {}, a.n, unit, 0, base, base + slots_of_tile); }
  clear_padding(s.keys, a.n.d);
  clear_padding(s.values, a.n.dv);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.q[buffer], a.n.d);
    clear_padding(s.d_o[buffer], a.n.dv);
  }
  __syncthreads();
  copy_dictionary(s.keys, s.values, s.bias, s.slots, a.n, 0);
  commit_async_copies();
  wait_async_copies<0>();
  __syncthreads();
  const auto exists = [&](int row) { return row < slots_of_tile; };
  Sums<kWidth> sums;
  sums.each(a, unit * a.slots.room + base, [&](auto& of, int width, float* memory) {
    each_pair<kWidth>(of, memory, width, exists,
                      [](float& x, float& y, const float* from) { load_floats(x, y, from); });
  });
  for (int64_t step = a.steps.first + a.steps.count - 1; step >= a.steps.first; --step) {
    if constexpr (Undo::kUndoes) { undo_slots(sums, s, a, undo, unit, step, base, slots_of_tile); }
    const UnitChunk at(a.n, unit, step);
    if (at.reads() && base < at.step.slots) {
      add_gradients(sums, s, a, at, static_cast<int>(at.step.slots - base < kRows ? at.step.slots - base : kRows));
    }
  }
  sums.each(a, unit * a.slots.room + base, [&](auto& of, int width, float* memory) {
    each_pair<kWidth>(of, memory, width, exists, [](float x, float y, float* to) { store_floats(to, x, y); });
  });
}

}  // namespace
}  // namespace mma

template <class Undo>
void read_slots_backward_mma(Stream& stream, int64_t batch, const SlotReadBackward<bf16>& a, const Undo& undo) {
  HEBB_ASSERT(Undo::kUndoes || a.steps.count == 1);
  const int64_t units = a.n.units(batch), query_tiles = (a.n.queries() + mma::kQueries - 1) / mma::kQueries,
                slot_tiles = (a.slots.room + kTile - 1) / kTile;
  const dim3 grid(blocks_for(query_tiles * units * a.steps.count, 1), static_cast<unsigned>(a.parts.count));
  attention_mma::dispatch_padded(std::max(a.n.d, a.n.dv), [&](auto width) {
    HEBB_LAUNCH((mma::slot_queries_mma_kernel<width()>), grid, mma::kThreads, sizeof(mma::queries::Shared<width()>),
                stream, a, query_tiles);
    HEBB_LAUNCH((mma::slot_gradients_mma_kernel<width(), Undo>), blocks_for(slot_tiles * units, 1), mma::kThreads,
                sizeof(mma::gradients::Shared<width()>), stream, a, undo, slot_tiles);
  });
  if (a.parts.count > 1) {
    each_warp("join_slot_gradients", stream, units * a.steps.count * a.n.queries(), mma::JoinGradients{a});
  }
}

template void read_slots_backward_mma(Stream&, int64_t, const SlotReadBackward<bf16>&, const NoUndo&);
template void read_slots_backward_mma(Stream&, int64_t, const SlotReadBackward<bf16>&, const ovq::Undo&);

}  // namespace hebb::HEBB_DEVICE::slots
