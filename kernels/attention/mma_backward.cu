#include "kernels/attention/mma.cuh"
#include "kernels/attention/scratch.h"
#include "kernels/common/cuda/fast_divide.cuh"

// Gradients of attention on tensor cores, bf16 with fp32 sums. One kernel is for the queries, one for keys, values and
// biases. Each computes the probabilities again, 7 products of a pair instead of 5: every sum has one owner and a fixed
// order, without atomics. Before both: delta = d_o . o and lse in units of log 2, memory bound.
// FLOPs: 4 (d + dv) a pair for the keys, 4 d + 2 dv for the queries. Bound: tensor cores; for the queries shared
// memory (docs/design/gpu-kernels.md). At width 128 a warp of the keys kernel starts the copies of a tile of rows in
// about 200 instructions beside 256 products, where groups have 1, 2, 4 or 8 heads; otherwise in 660 (counted in the
// SASS). Both kernels write nothing but results. Width 128: 255 registers, 106 KB (queries) and 113 KB shared, 2 blocks
// an SM; 64: 168 and 3 blocks, 230 and 2. No spills.
namespace hebb::HEBB_DEVICE::attention_mma {
namespace {

struct AttentionBackwardTask {
  Inputs<bf16> in;
  Order query_order, key_order;
  bf16 *d_q, *d_k, *d_v;
  float* d_bias;
  const bf16* d_o;
  const float *lse, *delta;  // of the statistics
  bool accumulate_q, accumulate_k, accumulate_v, accumulate_bias;
};

/// The delta of a query that sees one key. Its weight is 1 whatever the score is, so the score has a gradient of
/// exactly 0.
constexpr float kLoneKey = INFINITY;

/// Reads and writes the statistics of one line. lse is in units of log 2. It is +inf where it was -inf, so that
/// 2^(score - lse) is 0 there. delta is d_o . o, or kLoneKey.
struct Statistics {
  float *to_lse, *to_delta;
  const bf16 *d_o, *o;
  const float* lse;
  const int32_t *lo, *hi;
  int heads, dv, lanes;  // lanes: of a line
  bool has_other_keys;

  __device__ void operator()(int64_t line, int lane) const {
    float sum = 0;
    for (int c = 8 * lane; c < dv; c += 8 * lanes) {
      float a[8], b[8];
      load_pack(a, d_o + line * dv, c, dv, true);
      load_pack(b, o + line * dv, c, dv, true);
      HEBB_UNROLL
      for (int i = 0; i < 8; ++i) { sum += a[i] * b[i]; }
    }
    sum = group_sum(sum, lanes);
    if (lane == 0) {
      const int64_t token = Split(line, heads).quotient;
      to_delta[line] = hi[token] - lo[token] == 1 && !has_other_keys ? kLoneKey : sum;
      to_lse[line] = lse[line] == -INFINITY ? INFINITY : lse[line] * kLog2E;
    }
  }
};

// ---- gradients of queries: 128 rows a block, 32 a warp, that go over tiles of 32 keys

namespace queries {

constexpr int kRows = 128, kKeys = 32;
constexpr int kRowTiles = kRows / kWarps / 16, kKeyTiles = kKeys / 8;

template <int kWidth> struct Shared {
  TileOf<kRows, kWidth> queries, d_o;
  TileOf<kKeys, kWidth> keys[2], values[2];
  float bias[2][kKeys];
  float lse[kRows], delta[kRows];
  Intervals<kRows> intervals;
};
static_assert(fits_shared_memory<Shared>());

/// Scores and d_o . v become the gradients at the scores. `bias`: null, or of the tile's keys.
template <int kWidth>
__device__ __forceinline__ void weigh(float (&scores)[kRowTiles][kKeyTiles][4],
                                      const float (&d_p)[kRowTiles][kKeyTiles][4], const Shared<kWidth>& s,
                                      const float* bias, float scale, int tile, bool all_see) {
  HEBB_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int row = warp_number() * 16 * kRowTiles + 8 * i + lane_number() / 4;
    const float lse = s.lse[row], delta = s.delta[row];
    const int lo = all_see ? 0 : s.intervals.lo[row] - tile;
    const int hi = all_see ? kKeys : delta == kLoneKey ? lo : s.intervals.hi[row] - tile;
    HEBB_UNROLL
    for (int j = 0; j < kKeyTiles; ++j) {
      HEBB_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int key = 8 * j + lane_number() % 4 * 2 + e, at = i % 2 * 2 + e;
        const float addend = bias != nullptr ? fmaf(bias[key], kLog2E, -lse) : -lse;
        const float p = exp2_fast(fmaf(scores[i / 2][j][at], scale, addend));
        scores[i / 2][j][at] = lo <= key && key < hi ? p * (d_p[i / 2][j][at] - delta) : 0.0f;
      }
    }
  }
}

}  // namespace queries

template <int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth <= 64 ? 3 : 2)
    attention_mma_queries_kernel(AttentionBackwardTask a) {
  using namespace queries;
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const HeadTile at = head_tile(a.query_order, a.in.kv_heads, true);
  const StackedRows rows(a.in, at, at.tile * kRows, kRows);
  s.intervals.load(a.in, rows);
  clear_padding(s.queries, a.in.d);
  clear_padding(s.d_o, a.in.dv);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.keys[buffer], a.in.d);
    clear_padding(s.values[buffer], a.in.dv);
  }
  __syncthreads();
  copy_lines<kRows, kWidth>({{s.queries, a.in.q, a.in.d}, {s.d_o, a.d_o, a.in.dv}},
                            [&](int row) { return s.intervals.line[row]; });
  for (int i = static_cast<int>(threadIdx.x); i < kRows; i += kThreads) {
    const int64_t line = s.intervals.line[i];
    s.lse[i] = line >= 0 ? a.lse[line] : INFINITY;
    s.delta[i] = line >= 0 ? a.delta[line] : 0.0f;
  }
  const TileLoop<kRows, kKeys> loop(s.intervals, rows.count);
  int tile = loop.first_tile();
  if (tile < loop.last) { copy_keys(s.keys[0], s.values[0], s.bias[0], a.in, at, tile, loop.last); }
  commit_async_copies();
  const int first_row = warp_number() * 16 * kRowTiles * kStride<kWidth>;
  float d_q[kRowTiles][kWidth / 8][4] = {};
  for (int buffer = 0; tile < loop.last; buffer ^= 1) {
    const int next = loop.tile_from(tile + kKeys);
    wait_async_copies<0>();
    __syncthreads();  // all copies are there, and nobody reads the other buffer
    if (next < loop.last) {
      copy_keys(s.keys[buffer ^ 1], s.values[buffer ^ 1], s.bias[buffer ^ 1], a.in, at, next, loop.last);
    }
    commit_async_copies();
    if (loop.has_gaps) { loop.clear_unseen(s.keys[buffer], tile); }
    float scores[kRowTiles][kKeyTiles][4] = {}, d_p[kRowTiles][kKeyTiles][4] = {};
    multiply_rows<kWidth>(scores, s.queries.data + first_row, s.keys[buffer].data);
    multiply_rows<kWidth>(d_p, s.d_o.data + first_row, s.values[buffer].data);
    weigh(scores, d_p, s, a.in.bias != nullptr ? s.bias[buffer] : nullptr, a.in.scale * kLog2E, tile,
          loop.all_see(tile));
    uint32_t weights[kRowTiles][kKeyTiles / 2][4];
    pack_weights(weights, scores);
    add_weighted_rows<kWidth>(d_q, weights, s.keys[buffer].data);
    tile = next;
  }
  wait_async_copies<0>();
  const float scale[2 * kRowTiles] = {a.in.scale, a.in.scale, a.in.scale, a.in.scale};
  const auto line = [&](int row) { return s.intervals.line[warp_number() * 16 * kRowTiles + row]; };
  write_rows<kWidth>(a.d_q, a.in.d, a.in.d, line, d_q, scale, a.accumulate_q);
}

// ---- gradients of keys, values and biases: 64 keys a block that go over tiles of 64 rows. Of two warps that share
// 32 keys one computes probabilities and d_v, the other d_o . v and d_k; the first hands its probabilities on through
// shared memory. So both hold one result of 32 keys, and each fragment of rows from shared memory serves two products.

namespace keys {

constexpr int kRows = 64, kKeys = 64, kPairs = kWarps / 2;
constexpr int kKeyTiles = kKeys / kPairs / 16, kRowTiles = kRows / 8;

template <int kWidth> struct Shared {
  TileOf<kKeys, kWidth> keys, values;
  TileOf<kRows, kWidth> queries[2], d_o[2];
  Word4 weights[kPairs][kKeyTiles][kRowTiles / 2][32];
  float bias[kKeys];
  float lse[2][kRows], delta[2][kRows];
  int32_t lo[2][kRows], hi[2][kRows];
  // What would not fit in registers: the rows to copy next, and where results go.
  StackedRows next;
  int64_t first_line;           // of the tile's keys
  int first_key, count, tiles;  // of the block's keys; keys from there on; tiles of rows

  /// Where a thread keeps four sums: behind a row of keys or values, which is padded. There is no other place if two
  /// blocks are to fit.
  __device__ bf16* sums() {
    const int i = static_cast<int>(threadIdx.x);
    return (i < kKeys ? keys : values).data + i % kKeys * kStride<kWidth> + kWidth;
  }
};
static_assert(fits_shared_memory<Shared>());
static_assert(kThreads == 2 * kKeys);
static_assert(sizeof(Shared<128>) <= 113 * 1024, "two blocks and what the system takes fit in 228 KB");

using Scores = float[kKeyTiles][kRowTiles][4];

/// First token of a space, in [0, tokens], whose bound exceeds `key`; bounds do not decrease. By a whole warp, 32 at a
/// time.
__device__ __forceinline__ int64_t first_token_above(const int32_t* bounds, int64_t tokens, int64_t key) {
  int64_t low = 0, high = tokens;
  while (low < high) {
    const int64_t step = (high - low + 31) / 32,
                  mine = low + step * (lane_number() + 1) - 1;  // the last of the lane's part
    const unsigned above = __ballot_sync(kAllLanes, mine >= high || bounds[mine] > key);
    if (above == 0) { return high; }
    low += step * (__ffs(static_cast<int>(above)) - 1);
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

template <int kWidth>
__device__ __forceinline__ void copy_row_tile(Shared<kWidth>& s, int buffer, const AttentionBackwardTask& a) {
  const StackedRows rows = s.next;
  const LineCopy<kRows, kWidth> copies[] = {{s.queries[buffer], a.in.q, a.in.d}, {s.d_o[buffer], a.d_o, a.in.dv}};
  if (rows.are_even(Pieces<kRows, kWidth>::kStep)) {
    copy_even_lines(copies, rows);
  } else {
    copy_lines(copies, [&](int row) { return rows.line_of(row); });
  }
  const int row = static_cast<int>(threadIdx.x) % kRows, bytes = row < rows.count ? 4 : 0;
  const int64_t l = bytes > 0 ? rows.line_of(row) : 0, token = bytes > 0 ? rows.token_of(row) : 0;
  if (static_cast<int>(threadIdx.x) < kRows) {
    copy_async_4(&s.lse[buffer][row], a.lse + l, bytes);
    copy_async_4(&s.lo[buffer][row], a.in.lo + token, bytes);
  } else {
    copy_async_4(&s.delta[buffer][row], a.delta + l, bytes);
    copy_async_4(&s.hi[buffer][row], a.in.hi + token, bytes);
  }
}

/// Two columns of a result in one register, in the first half of what held them: other warps keep their results
/// meanwhile, and there are no registers for both.
__device__ __forceinline__ void pack_in_place(Scores& scores) {
  HEBB_UNROLL
  for (int i = 0; i < kKeyTiles * kRowTiles; ++i) {
    float(&x)[4] = scores[i / kRowTiles][i % kRowTiles];
    const uint32_t first = pack_bf16(x[0], x[1]), second = pack_bf16(x[2], x[3]);
    x[0] = __uint_as_float(first);
    x[1] = __uint_as_float(second);
  }
}

/// Makes the left operand of the next product of packed results, for 16 rows of the tile.
__device__ __forceinline__ Word4 operand_of(const Scores& packed, int m, int step) {
  return {{__float_as_uint(packed[m][2 * step][0]), __float_as_uint(packed[m][2 * step][1]),
           __float_as_uint(packed[m][2 * step + 1][0]), __float_as_uint(packed[m][2 * step + 1][1])}};
}

/// Turns scores into probabilities. `bias` is that of the warp's keys in units of log 2, `first_key` the warp's first.
template <int kWidth>
__device__ __forceinline__ void weigh(Scores& scores, const Shared<kWidth>& s, int buffer,
                                      const float (&bias)[2 * kKeyTiles], float scale, int first_key, bool all_see) {
  HEBB_UNROLL
  for (int j = 0; j < kRowTiles; ++j) {
    HEBB_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int row = 8 * j + lane_number() % 4 * 2 + e;
      const float lse = s.lse[buffer][row];
      const int lo = all_see ? 0 : s.lo[buffer][row] - first_key, hi = all_see ? kKeys : s.hi[buffer][row] - first_key;
      HEBB_UNROLL
      for (int i = 0; i < 2 * kKeyTiles; ++i) {
        const int key = 8 * i + lane_number() / 4;
        float& score = scores[i / 2][j][i % 2 * 2 + e];
        score = exp2_fast(fmaf(score, scale, bias[i] - lse));
        score = lo <= key && key < hi ? score : 0.0f;
      }
    }
  }
}

/// d_o . v becomes the gradients at the scores, given the probabilities; adds them up by keys, 8 i + lane / 4 of the
/// warp's.
template <int kWidth> __device__ __forceinline__ void differentiate(Scores& d_scores, Shared<kWidth>& s, int buffer) {
  Word4 d_bias = load_16_bytes(s.sums());
  HEBB_UNROLL
  for (int m = 0; m < kKeyTiles; ++m) {
    HEBB_UNROLL
    for (int j = 0; j < kRowTiles; j += 2) {
      const Word4 weights = s.weights[warp_number() / 2][m][j / 2][lane_number()];
      HEBB_UNROLL
      for (int e = 0; e < 8; ++e) {
        const int row = 8 * (j + e / 4) + lane_number() % 4 * 2 + e % 2;
        const uint32_t pair = weights.word[e / 2];
        const float p = e % 2 == 0 ? first_of(pair) : second_of(pair);
        float& d_score = d_scores[m][j + e / 4][e % 4];
        const float delta = s.delta[buffer][row];
        d_score =
            p != 0 && delta != kLoneKey ? p * (d_score - delta) : 0.0f;  // values that no row sees may hold anything
        uint32_t& sum = d_bias.word[2 * m + e / 2 % 2];
        sum = __float_as_uint(__uint_as_float(sum) + d_score);
      }
    }
  }
  store_16_bytes(s.sums(), d_bias);
}

}  // namespace keys

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) attention_mma_keys_kernel(AttentionBackwardTask a) {
  using namespace keys;
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<Shared<kWidth>*>(raw);
  const HeadTile at = head_tile(a.key_order, a.in.kv_heads, false);
  const int first_key = static_cast<int>(at.tile) * kKeys;
  const int32_t *lo = a.in.lo + at.space * a.in.tokens, *hi = a.in.hi + at.space * a.in.tokens;
  const int64_t first_row = first_token_above(hi, a.in.tokens, first_key) * a.in.group;
  const int64_t last_row = first_token_above(lo, a.in.tokens, first_key + kKeys - 1) * a.in.group;
  clear_padding(s.keys, a.in.d);
  clear_padding(s.values, a.in.dv);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.queries[buffer], a.in.d);
    clear_padding(s.d_o[buffer], a.in.dv);
  }
  copy_keys(s.keys, s.values, s.bias, a.in, at, first_key, static_cast<int>(a.in.keys));
  store_16_bytes(s.sums(), Word4{});
  if (threadIdx.x == 0) {
    s.next = StackedRows(a.in, at, first_row, kRows);
    s.first_line = (at.space * a.in.keys + first_key) * a.in.kv_heads + at.head;
    s.first_key = first_key;
    s.count = static_cast<int>(a.in.keys) - first_key;
    s.tiles = static_cast<int>((last_row - first_row + kRows - 1) / kRows);
  }
  __syncthreads();
  if (first_row < last_row) {
    copy_row_tile(s, 0, a);
    __syncthreads();
    if (threadIdx.x == 0) { s.next.advance(kRows, kRows); }
  }
  commit_async_copies();
  const bool weighs = warp_number() % 2 == 0;
  const int own = warp_number() / 2 * 16 * kKeyTiles;  // first of the warp's keys in the tile
  const bf16* const own_lines = (weighs ? s.keys : s.values).data + own * kStride<kWidth>;
  float out[kKeyTiles][kWidth / 8][4] = {};
  for (int tile = 0; tile < s.tiles; ++tile) {
    const int buffer = tile % 2;
    wait_async_copies<0>();
    __syncthreads();  // all copies are there, and nobody reads the other buffer or the weights
    if (tile + 1 < s.tiles) { copy_row_tile(s, buffer ^ 1, a); }
    commit_async_copies();
    Scores scores = {};
    multiply_rows<kWidth>(scores, own_lines, (weighs ? s.queries : s.d_o)[buffer].data);
    if (weighs) {
      float bias[2 * kKeyTiles];
      HEBB_UNROLL
      for (int i = 0; i < 2 * kKeyTiles; ++i) {
        bias[i] = a.in.bias != nullptr ? kLog2E * s.bias[own + 8 * i + lane_number() / 4] : 0.0f;
      }
      const bool all_see =
          tile + 1 < s.tiles && s.lo[buffer][kRows - 1] <= s.first_key && s.first_key + kKeys <= s.hi[buffer][0];
      weigh(scores, s, buffer, bias, a.in.scale * kLog2E, s.first_key + own, all_see);
      pack_in_place(scores);
      HEBB_UNROLL
      for (int i = 0; i < kKeyTiles * kRowTiles / 2; ++i) {
        const Word4 w = operand_of(scores, i / (kRowTiles / 2), i % (kRowTiles / 2));
        s.weights[warp_number() / 2][i / (kRowTiles / 2)][i % (kRowTiles / 2)][lane_number()] = w;
      }
    }
    __syncthreads();  // the weights are there, and the next rows' copies have started
    if (threadIdx.x == 0) { s.next.advance(kRows, kRows); }
    if (!weighs) {
      differentiate(scores, s, buffer);
      pack_in_place(scores);
    }
    uint32_t weights[kKeyTiles][kRowTiles / 2][4];
    HEBB_UNROLL
    for (int i = 0; i < kKeyTiles * kRowTiles * 2; ++i) {
      weights[i / 4 / (kRowTiles / 2)][i / 4 % (kRowTiles / 2)][i % 4] =
          operand_of(scores, i / 4 / (kRowTiles / 2), i / 4 % (kRowTiles / 2)).word[i % 4];
    }
    add_weighted_rows<kWidth>(out, weights, (weighs ? s.d_o : s.queries)[buffer].data);
  }
  wait_async_copies<0>();
  const auto line = [&](int key) {
    return own + key < s.count ? s.first_line + static_cast<int64_t>(own + key) * a.in.kv_heads : -1;
  };
  const float factor = weighs ? 1.0f : a.in.scale, factors[2 * kKeyTiles] = {factor, factor, factor, factor};
  bf16* const to = weighs ? a.d_v : a.d_k;
  if (to != nullptr) {
    const int width = weighs ? a.in.dv : a.in.d;
    write_rows<kWidth>(to, width, width, line, out, factors, weighs ? a.accumulate_v : a.accumulate_k);
  }
  if (!weighs && a.d_bias != nullptr) {
    const Word4 sums = load_16_bytes(s.sums());
    HEBB_UNROLL
    for (int i = 0; i < 2 * kKeyTiles; ++i) {
      const float sum = sum_of_quad(__uint_as_float(sums.word[i]));
      const int64_t l = line(8 * i + lane_number() / 4);
      if (l >= 0 && lane_number() % 4 == 0) { write(a.d_bias[l], sum, a.accumulate_bias); }
    }
  }
}

}  // namespace

void backward(Stream& stream, const AttentionBackward& a, const AttentionBackwardScratch& scratch) {
  const Inputs<bf16> in = attention::inputs_of<bf16>(a.q, a.k, a.v, a.lo, a.hi, a.bias, a.scale);
  const int64_t heads = a.k.size(0) * in.kv_heads, rows = in.tokens * in.group, lines = a.lse.numel();
  HEBB_ASSERT(scratch.statistics.numel() >= 2 * lines);
  float *const lse = scratch.statistics.as<float>(), *const delta = lse + lines;
  const auto tiles = [](int64_t count, int64_t size) { return (count + size - 1) / size; };
  const int64_t row_bytes = 2 * (in.d + in.dv);
  const AttentionBackwardTask b{.in = in,
                                .query_order = Order(tiles(rows, queries::kRows), heads, in.keys * row_bytes),
                                .key_order = Order(tiles(in.keys, keys::kKeys), heads, rows * row_bytes),
                                .d_q = a.d_q.as<bf16>(),
                                .d_k = a.d_k.as<bf16>(),
                                .d_v = a.d_v.as<bf16>(),
                                .d_bias = a.d_bias.as<float>(),
                                .d_o = a.d_o.as<bf16>(),
                                .lse = lse,
                                .delta = delta,
                                .accumulate_q = a.accumulate_q,
                                .accumulate_k = a.accumulate_k,
                                .accumulate_v = a.accumulate_v,
                                .accumulate_bias = a.accumulate_bias};
  const int lanes = lanes_for<8>(in.dv);
  HEBB_ASSERT(lines < (int64_t{1} << 31));
  each_group("attention_mma_statistics", stream, lines, lanes,
             Statistics{.to_lse = lse,
                        .to_delta = delta,
                        .d_o = a.d_o.as<bf16>(),
                        .o = a.o.as<bf16>(),
                        .lse = a.lse.as<float>(),
                        .lo = in.lo,
                        .hi = in.hi,
                        .heads = in.heads,
                        .dv = in.dv,
                        .lanes = lanes,
                        .has_other_keys = a.has_other_keys});
  dispatch_padded(std::max(in.d, in.dv), [&](auto width) {
    if (a.d_q.defined()) {
      HEBB_LAUNCH((attention_mma_queries_kernel<width()>), b.query_order.blocks(), kThreads,
                  sizeof(queries::Shared<width()>), stream, b);
    }
    if (a.d_k.defined() || a.d_v.defined() || a.d_bias.defined()) {
      HEBB_LAUNCH((attention_mma_keys_kernel<width()>), b.key_order.blocks(), kThreads, sizeof(keys::Shared<width()>),
                  stream, b);
    }
  });
}

}  // namespace hebb::HEBB_DEVICE::attention_mma
