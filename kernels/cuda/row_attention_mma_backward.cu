#include "kernels/cuda/common/row_attention_mma.h"

// Gradients of reading the rows of a dictionary on tensor cores: one kernel for the queries, one for keys and values of the rows, each of
// which computes the probabilities again (7 products of a pair instead of 5), so that every sum has one owner and a fixed order. lse in
// units of log 2 and delta = d_o . o are those of the attention to tokens. FLOPs a query and row: 4 D + 2 Dv and 4 (D + Dv).
// Queries: 128 a block, 32 a warp, tiles of 32 rows; with parts of the rows a second kernel adds the parts. Bound: as the forward pass.
// Rows: 64 a block, 16 a warp, which holds the gradients of both in registers from beginning to end; tiles of 32 queries. Bytes: the
// gradients are read and written in each step, 8 (D + Dv) a row and unit: with L G = 128 that is the bound (64 FLOPs a byte of HBM), with
// more queries shared memory, 2.5 cycles a product of 16 x 8 x 16.
// Width 128: 255 (queries) and 242 registers, 107 and 70 KB shared, 2 blocks an SM; 64: 168 and 3 blocks, 182 and 2. No spills.
namespace hebb::HEBB_DEVICE::rows {
namespace mma {
namespace {

// ---- gradients of queries

namespace queries {

constexpr int kRows = 32, kRowTiles = kRows / 8;

template <int kWidth>
struct Shared {
  TileOf<kQueries, kWidth> q, d_o;
  TileOf<kRows, kWidth> keys[2], values[2];
  float bias[2][kRows];
  float lse[kQueries], delta[kQueries];
  Queries queries;
  Source rows;
  int64_t unit, first_query;
};

/// Scores and d_o . v become the gradients at the scores.
template <int kWidth>
__device__ __forceinline__ void weigh(float (&scores)[kQueryTiles][kRowTiles][4], const float (&d_p)[kQueryTiles][kRowTiles][4],
                                      const Shared<kWidth>& s, const float* bias, int count) {
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
__device__ __forceinline__ void write_gradients(float (&sums)[kQueryTiles][kWidth / 8][4], const Shared<kWidth>& s, const Backward<bf16>& a) {
  float temps[2 * kQueryTiles];
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    const int query = query_of(i);
    const int64_t line = s.queries.line[query];
    temps[i] = line >= 0 && a.row_temp != nullptr ? a.scale * a.row_temp[line % a.n.heads] : a.scale;
    float along = 0;
    HEBB_UNROLL
    for (int j = 0; j < kWidth / 8; ++j) {
      const uint32_t pair = load_pair(&s.q.data[query * kStride<kWidth> + 8 * j + lane_number() % 4 * 2]);
      along += first_of(pair) * sums[i / 2][j][i % 2 * 2] + second_of(pair) * sums[i / 2][j][i % 2 * 2 + 1];
    }
    along = sum_of_quad(along);
    if (a.temp_sums != nullptr && line >= 0 && lane_number() % 4 == 0) {
      a.temp_sums[line] = a.scale * along;
    }
  }
  const auto line = [&](int row) { return s.queries.line[warp_number() * 16 * kQueryTiles + row]; };
  write_rows<kWidth>(a.d_q, a.n.d, a.n.d, line, sums, temps, true);
}

template <int kWidth>
__device__ __forceinline__ void write_part(const float (&sums)[kQueryTiles][kWidth / 8][4], const Shared<kWidth>& s, const Backward<bf16>& a,
                                           int64_t part) {
  HEBB_UNROLL
  for (int i = 0; i < 2 * kQueryTiles; ++i) {
    if (s.queries.line[query_of(i)] >= 0) {
      float* const to = a.parts.sums(a.parts.line(a.n, part, s.unit, s.first_query + query_of(i)), a.n.d) + lane_number() % 4 * 2;
      HEBB_UNROLL
      for (int j = 0; j < kWidth / 8; ++j) {
        if (8 * j < a.n.d) {
          store_floats(to + 8 * j, sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]);
        }
      }
    }
  }
}

}  // namespace queries

/// Grid: query tiles of the chunk x units, parts of the rows.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth <= 64 ? 3 : 2) row_queries_mma_kernel(Backward<bf16> a, int64_t query_tiles) {
  using namespace queries;
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<queries::Shared<kWidth>*>(raw);
  const int64_t first_query = blockIdx.x % query_tiles * kQueries, unit = blockIdx.x / query_tiles;
  const Place at(a.n, unit, a.step);
  const int64_t width = a.parts.tiles(at.step.rows) * kTile, first = blockIdx.y * width;
  const int64_t end = first + width < at.step.rows ? first + width : at.step.rows;
  if (!at.reads() || at.line(a.n, first_query) < 0 || first >= end) {
    return;  // the whole block
  }
  s.queries.load(a.n, at, first_query, a.row_temp, a.scale);
  for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kThreads) {  // lines that the thread itself loaded
    const int64_t line = s.queries.line[i];
    s.lse[i] = line >= 0 ? a.statistics[line] : INFINITY;
    s.delta[i] = line >= 0 ? a.statistics[a.queries + line] : 0.0f;
  }
  if (threadIdx.x == 0) {
    s.rows.load(a.rows, a.n, unit, first, end);
    s.unit = unit;
    s.first_query = first_query;
  }
  clear_padding(s.q, a.n.d);
  clear_padding(s.d_o, a.n.dv);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.keys[buffer], a.n.d);
    clear_padding(s.values[buffer], a.n.dv);
  }
  __syncthreads();
  copy_lines<kQueries, kWidth>({{s.q, a.q, a.n.d}, {s.d_o, a.d_o, a.n.dv}}, [&](int row) { return s.queries.line[row]; });
  copy_dictionary(s.keys[0], s.values[0], s.bias[0], s.rows, a.n, 0);
  commit_async_copies();
  const int own = warp_number() * 16 * kQueryTiles * kStride<kWidth>;
  float sums[kQueryTiles][kWidth / 8][4] = {};
  for (int base = 0; base < s.rows.count; base += kRows) {
    const int buffer = base / kRows % 2;
    wait_async_copies<0>();
    __syncthreads();  // all copies are there, and nobody reads the other buffer
    if (base + kRows < s.rows.count) {
      copy_dictionary(s.keys[buffer ^ 1], s.values[buffer ^ 1], s.bias[buffer ^ 1], s.rows, a.n, base + kRows);
    }
    commit_async_copies();
    float scores[kQueryTiles][kRowTiles][4] = {}, d_p[kQueryTiles][kRowTiles][4] = {};
    multiply_rows<kWidth>(scores, s.q.data + own, s.keys[buffer].data);
    multiply_rows<kWidth>(d_p, s.d_o.data + own, s.values[buffer].data);
    weigh(scores, d_p, s, s.bias[buffer], s.rows.count - base);
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

/// Adds the parts of a query's gradient. A warp has one query of one unit.
struct JoinGradients {
  Backward<bf16> a;

  __device__ void operator()(int64_t item, int lane) const {
    const Place at(a.n, item / a.n.queries(), a.step);
    const int64_t query = item % a.n.queries(), line = at.reads() && at.step.rows > 0 ? at.line(a.n, query) : -1;
    if (line < 0) {
      return;
    }
    const float temp = a.row_temp != nullptr ? a.row_temp[line % a.n.heads] : 1.0f;
    float along = 0;
    for (int64_t c = lane; c < a.n.d; c += 32) {
      float sum = 0;
      a.parts.each(a.n, at.step.rows, at.unit, query, [&](int64_t of) { sum += a.parts.sums(of, a.n.d)[c]; });
      sum *= a.scale;
      along += to_float(a.q[line * a.n.d + c]) * sum;
      write(a.d_q[line * a.n.d + c], temp * sum, true);
    }
    along = warp_sum(along);
    if (a.temp_sums != nullptr && lane == 0) {
      a.temp_sums[line] = along;
    }
  }
};

// ---- gradients of rows

namespace gradients {

constexpr int kRows = kTile, kTileQueries = 32, kTiles = kTileQueries / 8;
static_assert(kRows == 16 * kWarps);

template <int kWidth>
struct Shared {
  TileOf<kRows, kWidth> keys, values;
  TileOf<kTileQueries, kWidth> q[2], d_o[2];
  float bias[kRows];
  Source rows;
  float lse[2][kTileQueries], delta[2][kTileQueries], temp[2][kTileQueries];
  int64_t line[2][kTileQueries];  // -1: no query
};

template <int kWidth>
__device__ __forceinline__ void copy_queries(Shared<kWidth>& s, int buffer, const Backward<bf16>& a HEBB_WHERE_PARAMETER) {
  copy_lines<kTileQueries, kWidth>({{s.q[buffer], a.q, a.n.d}, {s.d_o[buffer], a.d_o, a.n.dv}}, [&](int row) { return s.line[buffer][row]; }
                                   HEBB_WHERE_ARGUMENT);
  const int i = static_cast<int>(threadIdx.x);
  if (i < kTileQueries) {
    const int64_t line = s.line[buffer][i] < 0 ? 0 : s.line[buffer][i];
    const int bytes = s.line[buffer][i] < 0 ? 0 : 4;
    copy_async_4(&s.lse[buffer][i], a.statistics + line, bytes HEBB_WHERE_ARGUMENT);
    copy_async_4(&s.delta[buffer][i], a.statistics + a.queries + line, bytes HEBB_WHERE_ARGUMENT);
    if (a.row_temp != nullptr) {
      copy_async_4(&s.temp[buffer][i], a.row_temp + line % a.n.heads, bytes HEBB_WHERE_ARGUMENT);
    } else {
      s.temp[buffer][i] = 1;
    }
  }
}

/// Scores become probabilities, and d_o . v the gradients at the products q . k. Queries that do not exist have zeros in q and d_o.
template <int kWidth>
__device__ __forceinline__ void weigh(float (&scores)[1][kTiles][4], float (&d_scores)[1][kTiles][4], const Shared<kWidth>& s, int buffer,
                                      float scale) {
  const int first = warp_number() * 16 + lane_number() / 4;
  const float bias[2] = {kLog2E * s.bias[first], kLog2E * s.bias[first + 8]};
  HEBB_UNROLL
  for (int e = 0; e < 2 * kTiles; ++e) {
    const int query = e / 2 * 8 + lane_number() % 4 * 2 + e % 2;
    const float lse = s.lse[buffer][query], delta = s.delta[buffer][query], factor = scale * s.temp[buffer][query];
    HEBB_UNROLL
    for (int i = 0; i < 2; ++i) {
      float &score = scores[0][e / 2][2 * i + e % 2], &d_score = d_scores[0][e / 2][2 * i + e % 2];
      score = exp2_fast(fmaf(score, factor * kLog2E, bias[i] - lse));
      d_score = factor * score * (d_score - delta);
    }
  }
}

/// The warp's gradients [16 rows, width] from memory or back to it.
template <int kWidth, class Access>
__device__ __forceinline__ void each_pair(float (&sums)[1][kWidth / 8][4], float* of_rows, int width, int count, Access&& access) {
  HEBB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = warp_number() * 16 + 8 * i + lane_number() / 4;
    float* const from = of_rows + int64_t{row} * width + lane_number() % 4 * 2;
    HEBB_UNROLL
    for (int j = 0; j < kWidth / 8; ++j) {
      if (row < count && 8 * j < width) {
        access(sums[0][j][2 * i], sums[0][j][2 * i + 1], from + 8 * j);
      }
    }
  }
}

}  // namespace gradients

/// Grid: tiles of rows x units.
template <int kWidth>
__global__ void __launch_bounds__(kThreads, 2) row_gradients_mma_kernel(Backward<bf16> a, int64_t row_tiles) {
  using namespace gradients;
  HEBB_DYN_SHARED(raw);
  auto& s = *reinterpret_cast<gradients::Shared<kWidth>*>(raw);
  const int64_t base = blockIdx.x % row_tiles * kRows, unit = blockIdx.x / row_tiles;
  const Place at(a.n, unit, a.step);
  if (!at.reads() || base >= at.step.rows) {
    return;  // the whole block
  }
  const auto load_lines = [&](int tile) {
    if (threadIdx.x < kTileQueries) {
      s.line[tile % 2][threadIdx.x] = at.line(a.n, int64_t{tile} * kTileQueries + threadIdx.x);
    }
  };
  load_lines(0);
  load_lines(1);
  if (threadIdx.x == 0) {
    s.rows.load(a.rows, a.n, unit, base, at.step.rows);
  }
  clear_padding(s.keys, a.n.d);
  clear_padding(s.values, a.n.dv);
  for (int buffer = 0; buffer < 2; ++buffer) {
    clear_padding(s.q[buffer], a.n.d);
    clear_padding(s.d_o[buffer], a.n.dv);
  }
  __syncthreads();
  copy_dictionary(s.keys, s.values, s.bias, s.rows, a.n, 0);
  copy_queries(s, 0, a);
  commit_async_copies();
  const int count = static_cast<int>(at.step.rows - base), own = warp_number() * 16 * kStride<kWidth>;
  float* const of_keys = a.d_keys + (unit * a.rows.room + base) * a.n.d;
  float* const of_values = a.d_values + (unit * a.rows.room + base) * a.n.dv;
  float d_keys[1][kWidth / 8][4] = {}, d_values[1][kWidth / 8][4] = {};
  each_pair<kWidth>(d_keys, of_keys, a.n.d, count, [](float& first, float& second, const float* from) { load_floats(first, second, from); });
  each_pair<kWidth>(d_values, of_values, a.n.dv, count, [](float& first, float& second, const float* from) { load_floats(first, second, from); });
  bool goes_on = true;
  for (int tile = 0; goes_on; ++tile) {
    const int buffer = tile % 2;
    wait_async_copies<0>();
    __syncthreads();  // all copies and the next tile's lines are there, and nobody reads the other buffer
    goes_on = s.line[buffer ^ 1][0] >= 0;
    if (goes_on) {
      copy_queries(s, buffer ^ 1, a);
    }
    commit_async_copies();
    load_lines(tile + 2);
    float scores[1][kTiles][4] = {}, d_scores[1][kTiles][4] = {};
    multiply_rows<kWidth>(scores, s.keys.data + own, s.q[buffer].data);
    multiply_rows<kWidth>(d_scores, s.values.data + own, s.d_o[buffer].data);
    weigh(scores, d_scores, s, buffer, a.scale);
    uint32_t weights[1][kTiles / 2][4];
    pack_weights(weights, scores);
    add_weighted_rows<kWidth>(d_values, weights, s.d_o[buffer].data);
    pack_weights(weights, d_scores);
    add_weighted_rows<kWidth>(d_keys, weights, s.q[buffer].data);
  }
  wait_async_copies<0>();
  each_pair<kWidth>(d_keys, of_keys, a.n.d, count, [](float first, float second, float* to) { store_floats(to, first, second); });
  each_pair<kWidth>(d_values, of_values, a.n.dv, count, [](float first, float second, float* to) { store_floats(to, first, second); });
}

}  // namespace
}  // namespace mma

void read_rows_backward_mma(Stream& stream, int64_t batch, const Backward<bf16>& a) {
  const int64_t units = a.n.units(batch), query_tiles = (a.n.queries() + mma::kQueries - 1) / mma::kQueries, row_tiles = (a.rows.room + kTile - 1) / kTile;
  attention_mma::dispatch_padded(std::max(a.n.d, a.n.dv), [&](auto width) {
    HEBB_LAUNCH((mma::row_queries_mma_kernel<width()>), dim3(blocks_for(query_tiles * units, 1), static_cast<unsigned>(a.parts.count)),
                mma::kThreads, sizeof(mma::queries::Shared<width()>), stream, a, query_tiles);
    HEBB_LAUNCH((mma::row_gradients_mma_kernel<width()>), blocks_for(row_tiles * units, 1), mma::kThreads,
                sizeof(mma::gradients::Shared<width()>), stream, a, row_tiles);
  });
  if (a.parts.count > 1) {
    each_warp("join_row_gradients", stream, units * a.n.queries(), mma::JoinGradients{a});
  }
}

}  // namespace hebb::HEBB_DEVICE::rows
