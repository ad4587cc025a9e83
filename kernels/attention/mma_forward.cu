#include "kernels/attention/mma.cuh"

// Flash attention on tensor cores, bf16 with fp32 sums: 128 stacked rows a block, 32 a warp, so that a fragment of keys
// or values from shared memory serves two products. Tiles of 64 keys, double buffered by cp.async, one barrier a tile;
// probabilities stay in registers as the left operand of the second product. FLOPs: 2 (d + dv) a pair of the tiles that
// hold a visible one. Bound: tensor cores; beside them shared memory and one exponential a pair
// (docs/design/gpu-kernels.md). HBM: q, k, v and o once if a section's keys and values stay in L2. Width 64: 168
// registers, 61 KB shared, 3 blocks an SM; 128: 255, 109 KB, 2 blocks. No spills.
namespace hebb::HEBB_DEVICE::attention_mma {
namespace {

constexpr int kRows = 128, kKeys = 64;
constexpr int kRowTiles = kRows / kWarps / 16, kKeyTiles = kKeys / 8;

struct AttentionForwardTask {
  Inputs<bf16> in;
  Order order;
  bf16* o;
  float* lse;
};

template <int kWidth> struct Shared {
  TileOf<kRows, kWidth> queries;
  TileOf<kKeys, kWidth> keys[2], values[2];
  float bias[2][kKeys];
  Intervals<kRows> intervals;
  RowValues<kRowTiles> tops[kThreads], sums[kThreads];  // of the softmax: registers are short
};

static_assert(fits_shared_memory<Shared>());

using Scores = float[kRowTiles][kKeyTiles][4];

/// In units of log 2, as all scores of a call with biases.
__device__ __forceinline__ void add_bias(Scores& scores, const float* bias, float scale) {
  HEBB_UNROLL
  for (int j = 0; j < kKeyTiles; ++j) {
    HEBB_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float addend = kLog2E * bias[8 * j + lane_number() % 4 * 2 + e % 2];
      HEBB_UNROLL
      for (int m = 0; m < kRowTiles; ++m) { scores[m][j][e] = fmaf(scores[m][j][e], scale, addend); }
    }
  }
}

__device__ __forceinline__ void mask(Scores& scores, const Intervals<kRows>& intervals, int tile) {
  HEBB_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int row = warp_number() * 16 * kRowTiles + 8 * i + lane_number() / 4;
    const int lo = intervals.lo[row] - tile, hi = intervals.hi[row] - tile;
    HEBB_UNROLL
    for (int j = 0; j < kKeyTiles; ++j) {
      HEBB_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int key = 8 * j + lane_number() % 4 * 2 + e;
        float& score = scores[i / 2][j][i % 2 * 2 + e];
        score = lo <= key && key < hi ? score : -INFINITY;
      }
    }
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth == 64 ? 3 : 2) attention_mma_forward_kernel(AttentionForwardTask a) {
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const HeadTile at = head_tile(a.order, a.in.kv_heads, true);
  const StackedRows rows(a.in, at, at.tile * kRows, kRows);
  s.intervals.load(a.in, rows);
  clear_padding(s.queries, a.in.d);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.keys[buffer], a.in.d);
    clear_padding(s.values[buffer], a.in.dv);
  }
  __syncthreads();
  copy_lines<kRows, kWidth>({{s.queries, a.in.q, a.in.d}}, [&](int row) { return s.intervals.line[row]; });
  const TileLoop<kRows, kKeys> loop(s.intervals, rows.count);
  int tile = loop.first_tile();
  if (tile < loop.last) { copy_keys(s.keys[0], s.values[0], s.bias[0], a.in, at, tile, loop.last); }
  commit_async_copies();
  const bf16* const queries = &s.queries.data[warp_number() * 16 * kRowTiles * kStride<kWidth>];
  const float scale = a.in.scale * kLog2E, factor = a.in.bias != nullptr ? 1.0f : scale;
  RowValues<kRowTiles>&tops = s.tops[threadIdx.x], &sums = s.sums[threadIdx.x];
  HEBB_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    tops.of[i] = -INFINITY;
    sums.of[i] = 0;
  }
  float out[kRowTiles][kWidth / 8][4] = {};
  for (int buffer = 0; tile < loop.last; buffer ^= 1) {
    const int next = loop.tile_from(tile + kKeys);
    wait_async_copies<0>();
    __syncthreads();  // all copies are there, and nobody reads the other buffer
    if (next < loop.last) {
      copy_keys(s.keys[buffer ^ 1], s.values[buffer ^ 1], s.bias[buffer ^ 1], a.in, at, next, loop.last);
    }
    commit_async_copies();
    if (loop.has_gaps) { loop.clear_unseen(s.values[buffer], tile); }
    Scores scores = {};
    multiply_rows<kWidth>(scores, queries, s.keys[buffer].data);
    if (a.in.bias != nullptr) { add_bias(scores, s.bias[buffer], scale); }
    if (!loop.all_see(tile)) { mask(scores, s.intervals, tile); }
    add_to_softmax(scores, factor, tops, sums, out);
    uint32_t weights[kRowTiles][kKeyTiles / 2][4];
    pack_weights(weights, scores);
    add_weighted_rows<kWidth>(out, weights, s.values[buffer].data);
    tile = next;
  }
  wait_async_copies<0>();
  const auto line = [&](int row) { return s.intervals.line[warp_number() * 16 * kRowTiles + row]; };
  float inverse[2 * kRowTiles];
  HEBB_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const float sum = sum_of_quad(sums.of[i]);
    inverse[i] = sum > 0 ? 1.0f / sum : 0.0f;
    const int64_t l = line(8 * i + lane_number() / 4);
    if (a.lse != nullptr && l >= 0 && lane_number() % 4 == 0) {
      a.lse[l] = sum > 0 ? tops.of[i] * factor * kLn2 + logf(sum) : -INFINITY;
    }
  }
  write_rows<kWidth>(a.o, a.in.dv, a.in.dv, line, out, inverse, false);
}

}  // namespace

void forward(Stream& stream, const AttentionForward& a) {
  const Inputs<bf16> in = attention::inputs_of<bf16>(a.q, a.k, a.v, a.lo, a.hi, a.bias, a.scale);
  const int64_t tiles = (in.tokens * in.group + kRows - 1) / kRows;
  const Order order(tiles, a.k.size(0) * in.kv_heads, in.keys * (in.d + in.dv) * 2);
  dispatch_padded(std::max(in.d, in.dv), [&](auto width) {
    HEBB_LAUNCH((attention_mma_forward_kernel<width()>), order.blocks(), kThreads, sizeof(Shared<width()>), stream,
                AttentionForwardTask{in, order, a.o.as<bf16>(), a.lse.as<float>()});
  });
}

}  // namespace hebb::HEBB_DEVICE::attention_mma
