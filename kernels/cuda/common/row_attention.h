#pragma once
// Attention to the rows of a dictionary that changes from chunk to chunk (spec 60, section 3; spec 61, section 6; spec 70, section 4.6).
// The host launches step by step; in a step each row of the batch has at most one chunk that reads the dictionary and one that is folded
// in, so that launches are the only order between chunks and rows stay in place. What a chunk sees of the tokens themselves is the work
// of the attention kernels, which go first for all chunks; the rows are merged into their result by log-sum-exp.
//
// Tiles of 64 x 64 as in attention_tile.h. FLOPs: 2 H (D + Dv) a query and row, backward 7 products of D or Dv. Bound: fp32
// multiply-adds, the rows of a head coming from L2. Where B K ceil(L G / 64) blocks do not fill the device, the rows are divided among
// several, whose parts of the softmax a second kernel joins.
#include <algorithm>

#include "kernels/cuda/common/attention_tile.h"
#include "kernels/dictionary_parts.h"

namespace hebb::HEBB_DEVICE::rows {

using namespace attention;  // tiles

constexpr int32_t kNone = INT32_MIN;
constexpr int64_t kSliceColumns = 16 * kMaxColumns;  // of a slice of the grid

/// One step of one row of the batch. Tokens count from the row's first; those of an earlier segment are negative.
struct Step {
  int32_t read = kNone, rows = 0;              // first token of the chunk that reads, and how many rows it sees
  int32_t fold = kNone, before = 0, after = 0; // first token of the chunk whose entry or end changes the rows, and how many there are
};

/// Chunk starts lie in one step where they are less than a chunk apart: token t is of step ceil(t / chunk).
inline int64_t steps_of(int64_t length, int64_t chunk) { return (length - 1 + chunk - 1) / chunk + 1; }

/// Calls f(t) for the chunk starts of a row in step s, each on one lane of a warp.
template <class F>
__device__ __forceinline__ void each_chunk_start(const int32_t* doc_start, int64_t length, int64_t chunk, int64_t s, int lane, F&& f) {
  for (int64_t t = (s - 1) * chunk + 1 + lane; t <= s * chunk && t < length; t += 32) {
    const int64_t begin = doc_start[t < 0 ? 0 : t];
    if (begin <= t && (t - begin) % chunk == 0) {
      f(t, begin);
    }
  }
}

__device__ __forceinline__ int32_t warp_max_of(int32_t value HEBB_WHERE_PARAMETER) {
  HEBB_UNROLL
  for (int bits = 16; bits > 0; bits /= 2) {
    const int32_t other = __shfl_xor_sync(kAllLanes, value, bits, 32 HEBB_WHERE_ARGUMENT);
    value = other > value ? other : value;
  }
  return value;
}

/// Calls f(i), in order, for the places i >= first of ids [count] that hold `id`. All lanes of a warp.
template <class F>
__device__ __forceinline__ void each_member(const int32_t* ids, int64_t count, int64_t first, int32_t id, int lane,
                                            F&& f HEBB_WHERE_PARAMETER) {
  for (int64_t base = first; base < count; base += 32) {
    const bool is_member = base + lane < count && ids[base + lane] == id;
    for (unsigned left = __ballot_sync(kAllLanes, is_member HEBB_WHERE_ARGUMENT); left != 0; left &= left - 1) {
      f(base + __ffs(static_cast<int>(left)) - 1);
    }
  }
}

/// Whether ids [0, at) hold `id`. All lanes of a warp.
__device__ __forceinline__ bool is_among(const int32_t* ids, int64_t at, int32_t id, int lane HEBB_WHERE_PARAMETER) {
  for (int64_t base = 0; base < at; base += 32) {
    if (__ballot_sync(kAllLanes, base + lane < at && ids[base + lane] == id HEBB_WHERE_ARGUMENT) != 0) {
      return true;
    }
  }
  return false;
}

/// What the queries and the plan of a pass are, on the device.
struct Layout {
  const int32_t* doc_start;  // [B, T]
  const Step* steps;         // [B, count]
  int64_t length, chunk, count;
  int heads, kv_heads, d, dv;

  __device__ int group() const { return heads / kv_heads; }
  __device__ Step at(int64_t row, int64_t step) const { return steps[row * count + step]; }
  int64_t units(int64_t batch) const { return batch * kv_heads; }
  /// Most stacked queries of a chunk, and their tiles.
  constexpr int64_t queries() const { return (chunk < length ? chunk : length) * (heads / kv_heads); }
  constexpr int64_t query_tiles() const { return (queries() + kTile - 1) / kTile; }
};

/// A block's unit (row and kv head) and the chunk that reads in this step.
struct Place {
  int64_t row, unit, first, begin;  // first: of the chunk's tokens in this pass; begin: of the document
  int head;
  Step step;

  __device__ Place(const Layout& n, int64_t unit, int64_t step_number)
      : row(unit / n.kv_heads), unit(unit), head(static_cast<int>(unit % n.kv_heads)), step(n.at(row, step_number)) {
    first = step.read < 0 ? 0 : step.read;
    begin = n.doc_start[row * n.length + first];
  }
  __device__ bool reads() const { return step.read != kNone; }
  /// Line of stacked query r of the chunk; -1: there is none.
  __device__ int64_t line(const Layout& n, int64_t r) const {
    const int64_t t = first + r / n.group();
    const bool exists = t < n.length && t < step.read + n.chunk && n.doc_start[row * n.length + t] == begin;
    return exists ? (row * n.length + t) * n.heads + head * n.group() + r % n.group() : -1;
  }
};

__device__ __forceinline__ void load_queries(Shared& s, const Layout& n, const Place& at, int64_t first) {
  if (threadIdx.x < kTile) {
    s.row_line[threadIdx.x] = at.line(n, first + threadIdx.x);
  }
}

/// Keys, shared by the batch ([K, R, D]) or not ([B, K, R, D]); values [B, K, R, Dv]; bias [B, K, R] or null.
struct Rows {
  const float *keys, *values, *bias;
  int64_t room;
  bool shared_keys = false;
};

/// Keys and values of tokens before this pass as a ring [B, K, size, D] by position; a chunk sees its own and `window` - 1 before it.
struct Ring {
  const float *k = nullptr, *v = nullptr;
  int64_t size = 0, window = 1;
};

/// A dictionary's parts: numerators [parts, B K, queries, Dv], then maximum and sum of each [parts, B K, queries, 2].
struct Parts {
  float* memory = nullptr;
  int64_t count = 1, units = 0;

  /// Tiles of rows in a part.
  __device__ int64_t tiles(int64_t rows) const { return ((rows + kTile - 1) / kTile + count - 1) / count; }
  __device__ int64_t line(const Layout& n, int64_t part, int64_t unit, int64_t query) const {
    return (part * units + unit) * n.queries() + query;
  }
  __device__ float* numerators(const Layout& n, int64_t line) const { return memory + line * n.dv; }
  __device__ float* statistics(const Layout& n, int64_t line) const { return memory + count * units * n.queries() * n.dv + 2 * line; }
};

struct Read {
  Layout n;
  Rows rows;
  Ring ring;
  const float* q;
  float *o, *lse;
  const float *own_lse, *row_temp, *ring_temp;  // temperatures [H], or null
  float scale;
  int64_t step;
  Parts parts = {};
};

struct Lines {
  int64_t value[kTile];
  float bias[kTile], temp[kTile];
};

/// Lines of up to 64 rows from `base` on; nothing past `count`.
__device__ __forceinline__ void load_row_lines(Shared& s, Lines& lines, const Rows& rows, const Layout& n, int64_t unit, int64_t base,
                                               int64_t count) {
  if (threadIdx.x < kTile) {
    const int64_t r = base + threadIdx.x, line = unit * rows.room + r;
    const bool exists = r < count;
    s.key_line[threadIdx.x] = !exists ? -1 : rows.shared_keys ? unit % n.kv_heads * rows.room + r : line;
    lines.value[threadIdx.x] = exists ? line : -1;
    lines.bias[threadIdx.x] = exists && rows.bias != nullptr ? rows.bias[line] : 0.0f;
  }
}

__device__ __forceinline__ void load_temperatures(Lines& lines, const Shared& s, const Layout& n, const float* temps, float scale) {
  if (threadIdx.x < kTile) {
    const int64_t line = s.row_line[threadIdx.x];
    lines.temp[threadIdx.x] = temps != nullptr && line >= 0 ? scale * temps[line % n.heads] : scale;
  }
}

/// Adds one tile of keys, whose lines are loaded, to the softmax of the block's queries.
template <int kColumns>
__device__ __forceinline__ void read_tile(float (&out)[4][kColumns], Softmax (&softmax)[4], Shared& s, const Lines& lines, const Read& a,
                                          const float* keys, const float* values, int first_column HEBB_WHERE_PARAMETER) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  float scores[4][4];
  multiply_lines(scores, s, a.q, s.row_line, keys, s.key_line, a.n.d HEBB_WHERE_ARGUMENT);
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const bool exists = s.row_line[4 * y + i] >= 0;
    HEBB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int slot = x + 16 * j;
      scores[i][j] = exists && s.key_line[slot] >= 0 ? lines.temp[4 * y + i] * scores[i][j] + lines.bias[slot] : -INFINITY;
    }
  }
  weigh_scores(out, softmax, s, scores HEBB_WHERE_ARGUMENT);
  add_weighted_lines(out, s, values, lines.value, a.n.dv, first_column HEBB_WHERE_ARGUMENT);
  __syncthreads(HEBB_WHERE_HERE);  // lines and weights are replaced
}

template <int kColumns>
__device__ __forceinline__ void write_part(const float (&out)[4][kColumns], const Softmax (&softmax)[4], const Shared& s, const Layout& n,
                                           const Parts& parts, const Place& at, int64_t part, int64_t first_row, int first_column) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (s.row_line[4 * y + i] >= 0) {
      const int64_t line = parts.line(n, part, at.unit, first_row + 4 * y + i);
      HEBB_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const int c = first_column + x + 16 * j;
        if (c < n.dv) {
          parts.numerators(n, line)[c] = out[i][j];
        }
      }
      if (x == 0 && first_column == 0) {
        parts.statistics(n, line)[0] = softmax[i].top;
        parts.statistics(n, line)[1] = softmax[i].sum;
      }
    }
  }
}

/// Grid: query tiles of the chunk x units, slices of value channels, parts of the rows. o holds the attention to tokens, own_lse its log-sum-exp.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) read_rows_kernel(Read a) {
  HEBB_SHARED(Shared, s);
  HEBB_SHARED(Lines, lines);
  const int64_t tiles = a.n.query_tiles(), first_row = blockIdx.x % tiles * kTile;
  const Place at(a.n, blockIdx.x / tiles, a.step);
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const int64_t part = blockIdx.z, width = a.parts.tiles(at.step.rows) * kTile, first_of_part = part * width;
  if (!at.reads() || at.line(a.n, first_row) < 0 || (part > 0 && first_of_part >= at.step.rows)) {
    return;  // the whole block
  }
  load_queries(s, a.n, at, first_row);
  __syncthreads();
  Softmax softmax[4];
  float out[4][kColumns] = {};
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t line = s.row_line[4 * y + i];
    if (line >= 0 && part == 0) {
      softmax[i] = {a.own_lse[line], 1.0f};
      HEBB_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const int c = first_column + x + 16 * j;
        out[i][j] = c < a.n.dv ? a.o[line * a.n.dv + c] : 0.0f;
      }
    }
  }
  load_temperatures(lines, s, a.n, a.row_temp, a.scale);
  for (int64_t base = first_of_part; base < first_of_part + width && base < at.step.rows; base += kTile) {
    load_row_lines(s, lines, a.rows, a.n, at.unit, base, at.step.rows);
    __syncthreads();
    read_tile(out, softmax, s, lines, a, a.rows.keys, a.rows.values, first_column);
  }
  const int64_t oldest = ((at.step.read - at.begin) / a.n.chunk - a.ring.window + 1) * a.n.chunk, from = oldest > 0 ? oldest : 0;
  const int64_t earlier = a.ring.k == nullptr || part > 0 ? 0 : -at.begin - from;  // tokens before this pass that the chunk sees
  __syncthreads();  // with the last tile done, or none
  if (earlier > 0) {
    load_temperatures(lines, s, a.n, a.ring_temp, a.scale);
  }
  for (int64_t base = 0; base < earlier; base += kTile) {
    if (threadIdx.x < kTile) {
      const int64_t i = base + threadIdx.x, line = i < earlier ? at.unit * a.ring.size + (from + i) % a.ring.size : -1;
      s.key_line[threadIdx.x] = lines.value[threadIdx.x] = line;
      lines.bias[threadIdx.x] = 0;
    }
    __syncthreads();
    read_tile(out, softmax, s, lines, a, a.ring.k, a.ring.v, first_column);
  }
  if (a.parts.count > 1) {
    write_part(out, softmax, s, a.n, a.parts, at, part, first_row, first_column);
    return;
  }
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t line = s.row_line[4 * y + i];
    HEBB_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      out[i][j] /= softmax[i].sum;
    }
    if (a.lse != nullptr && x == 0 && line >= 0 && blockIdx.y == 0) {
      a.lse[line] = softmax[i].top + logf(softmax[i].sum);
    }
  }
  write_lines(a.o, s.row_line, a.n.dv, first_column, out, false);
}

// Joins the parts of a chunk's queries. A warp has one query of one unit.
struct JoinParts {
  Read a;

  __device__ void operator()(int64_t item, int lane) const {
    const Place at(a.n, item / a.n.queries(), a.step);
    const int64_t query = item % a.n.queries(), line = at.reads() ? at.line(a.n, query) : -1;
    if (line < 0) {
      return;
    }
    const int64_t width = a.parts.tiles(at.step.rows) * kTile;
    const auto each_part = [&](auto&& f) {
      for (int64_t part = 0; part < a.parts.count && (part == 0 || part * width < at.step.rows); ++part) {
        f(a.parts.line(a.n, part, at.unit, query));
      }
    };
    float top = -INFINITY, sum = 0;
    each_part([&](int64_t of) { top = fmaxf(top, a.parts.statistics(a.n, of)[0]); });
    each_part([&](int64_t of) { sum += a.parts.statistics(a.n, of)[1] * expf(a.parts.statistics(a.n, of)[0] - top); });
    for (int64_t c = lane; c < a.n.dv; c += 32) {
      float o = 0;
      each_part([&](int64_t of) { o += a.parts.numerators(a.n, of)[c] * expf(a.parts.statistics(a.n, of)[0] - top); });
      a.o[line * a.n.dv + c] = o / sum;
    }
    if (a.lse != nullptr && lane == 0) {
      a.lse[line] = top + logf(sum);
    }
  }
};

inline void read_rows(Stream& stream, int64_t batch, const Read& a) {
  dispatch_width(a.n.dv, [&](auto columns, unsigned slices) {
    const dim3 grid(blocks_for(a.n.query_tiles() * a.n.units(batch), 1), slices, static_cast<unsigned>(a.parts.count));
    HEBB_LAUNCH((read_rows_kernel<columns()>), grid, kThreads, 0, stream, a);
  });
  if (a.parts.count > 1) {
    each_warp("join_parts", stream, a.n.units(batch) * a.n.queries(), JoinParts{a});
  }
}

/// memory: of dictionary_parts_work(...) elements.
inline Parts parts_of(const Layout& n, int64_t batch, int64_t room, float* memory) {
  return {memory, dictionary_parts(n.units(batch), n.queries(), room), n.units(batch)};
}

struct Backward {
  Layout n;
  Rows rows;
  const float *q, *d_o, *o, *lse, *row_temp;
  float* d_q;                 // added to
  float *d_keys, *d_values;   // [B, K, R, D], [B, K, R, Dv]: added to
  float* temp_sums;           // [slices, B, T, H]: of q . d_q / temperature, or null
  int64_t queries;            // B T H
  float scale;
  int64_t step;
};

/// Probability of a query and a row from their product; 0 where one of them does not exist.
__device__ __forceinline__ float probability(const Shared& s, const Lines& lines, int query, int row, float product) {
  const bool exists = s.row_line[query] >= 0 && s.key_line[row] >= 0;
  return exists ? expf(lines.temp[query] * product + lines.bias[row] - s.lse[query]) : 0.0f;
}

/// d_q of a tile of queries: walks over the rows. Grid as of read_rows_kernel, slices of key channels.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) row_queries_kernel(Backward a) {
  HEBB_SHARED(Shared, s);
  HEBB_SHARED(Lines, lines);
  const int64_t tiles = a.n.query_tiles(), first_row = blockIdx.x % tiles * kTile;
  const Place at(a.n, blockIdx.x / tiles, a.step);
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  if (!at.reads() || at.line(a.n, first_row) < 0) {
    return;  // the whole block
  }
  load_queries(s, a.n, at, first_row);
  __syncthreads();
  load_statistics(s, a.d_o, a.o, a.lse, a.n.dv);
  load_temperatures(lines, s, a.n, a.row_temp, a.scale);
  float sums[4][kColumns] = {};  // of scale d_score k
  for (int64_t base = 0; base < at.step.rows; base += kTile) {
    load_row_lines(s, lines, a.rows, a.n, at.unit, base, at.step.rows);
    __syncthreads();
    float products[4][4], d_p[4][4];
    multiply_lines(products, s, a.q, s.row_line, a.rows.keys, s.key_line, a.n.d);
    multiply_lines(d_p, s, a.d_o, s.row_line, a.rows.values, lines.value, a.n.dv);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int query = 4 * y + i, row = x + 16 * j;
        s.weights[query][row] = a.scale * probability(s, lines, query, row, products[i][j]) * (d_p[i][j] - s.delta[query]);
      }
    }
    add_weighted_lines(sums, s, a.rows.keys, s.key_line, a.n.d, first_column);
    __syncthreads();  // lines and weights are replaced
  }
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int64_t line = s.row_line[4 * y + i];
    const float temp = a.row_temp != nullptr && line >= 0 ? a.row_temp[line % a.n.heads] : 1.0f;
    float along = 0;
    HEBB_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const int c = first_column + x + 16 * j;
      along += line >= 0 && c < a.n.d ? a.q[line * a.n.d + c] * sums[i][j] : 0.0f;
      sums[i][j] *= temp;
    }
    along = sum_of_16(along);
    if (a.temp_sums != nullptr && x == 0 && line >= 0) {
      a.temp_sums[blockIdx.y * a.queries + line] = along;
    }
  }
  write_lines(a.d_q, s.row_line, a.n.d, first_column, sums, true);
}

/// d_keys and d_values of a tile of rows: walks over the chunk's queries. Tiles are [row][query] here. Grid: tiles of rows x units,
/// slices of channels.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) row_gradients_kernel(Backward a) {
  HEBB_SHARED(Shared, s);
  HEBB_SHARED(Lines, lines);
  const int64_t tiles = (a.rows.room + kTile - 1) / kTile, base = blockIdx.x % tiles * kTile;
  const Place at(a.n, blockIdx.x / tiles, a.step);
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  if (!at.reads() || base >= at.step.rows) {
    return;  // the whole block
  }
  load_row_lines(s, lines, a.rows, a.n, at.unit, base, at.step.rows);
  float d_keys[4][kColumns] = {}, d_values[4][kColumns] = {};
  for (int64_t first = 0; at.line(a.n, first) >= 0; first += kTile) {
    __syncthreads();  // the last tile's lines and weights were read
    load_queries(s, a.n, at, first);
    __syncthreads();
    load_statistics(s, a.d_o, a.o, a.lse, a.n.dv);
    load_temperatures(lines, s, a.n, a.row_temp, a.scale);
    float products[4][4], d_p[4][4];
    multiply_lines(products, s, a.rows.keys, s.key_line, a.q, s.row_line, a.n.d);
    multiply_lines(d_p, s, a.rows.values, lines.value, a.d_o, s.row_line, a.n.dv);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int row = 4 * y + i, query = x + 16 * j;
        const float p = probability(s, lines, query, row, products[i][j]);
        s.weights[row][query] = p;
        d_p[i][j] = lines.temp[query] * p * (d_p[i][j] - s.delta[query]);
      }
    }
    add_weighted_lines(d_values, s, a.d_o, s.row_line, a.n.dv, first_column);
    __syncthreads();
    HEBB_UNROLL
    for (int i = 0; i < 16; ++i) {
      s.weights[4 * y + i / 4][x + 16 * (i % 4)] = d_p[i / 4][i % 4];
    }
    add_weighted_lines(d_keys, s, a.q, s.row_line, a.n.d, first_column);
  }
  write_lines(a.d_keys, s.key_line, a.n.d, first_column, d_keys, true);
  write_lines(a.d_values, lines.value, a.n.dv, first_column, d_values, true);
}

inline void read_rows_backward(Stream& stream, int64_t batch, const Backward& a) {
  dispatch_width(a.n.d, [&](auto columns, unsigned slices) {
    HEBB_LAUNCH((row_queries_kernel<columns()>), dim3(blocks_for(a.n.query_tiles() * a.n.units(batch), 1), slices), kThreads, 0, stream,
                a);
  });
  dispatch_width(std::max(a.n.d, a.n.dv), [&](auto columns, unsigned slices) {
    const int64_t tiles = (a.rows.room + kTile - 1) / kTile;
    HEBB_LAUNCH((row_gradients_kernel<columns()>), dim3(blocks_for(tiles * a.n.units(batch), 1), slices), kThreads, 0, stream, a);
  });
}

/// Hands out parts of the work scratch.
class WorkParts {
 public:
  explicit WorkParts(const Tensor& work) : next_(work.as<float>()), end_(next_ + work.numel()) {}
  template <class X>
  X* take(int64_t count) {
    auto* const part = reinterpret_cast<X*>(next_);
    next_ += (count * static_cast<int64_t>(sizeof(X)) + 15) / 16 * 4;
    HEBB_ASSERT(next_ <= end_);
    return part;
  }

 private:
  float *next_, *end_;
};

template <class Args>
Layout layout_of(const Args& a, const Step* steps, int64_t count) {
  return {.doc_start = a.doc_start.template as<int32_t>(), .steps = steps, .length = a.q.size(1), .chunk = a.rule.chunk, .count = count,
          .heads = static_cast<int>(a.q.size(2)), .kv_heads = static_cast<int>(a.k.size(2)), .d = static_cast<int>(a.q.size(3)),
          .dv = static_cast<int>(a.v.size(3))};
}

struct CopyFloats {
  float* to;
  const float* from;
  __device__ void operator()(int64_t, int64_t i) const { to[i] = from[i]; }
};

template <class X>
struct Fill {
  X *to, value;
  __device__ void operator()(int64_t, int64_t i) const { to[i] = value; }
};

template <class X>
void fill(Stream& stream, X* to, int64_t count, X value) {
  each_element("fill", stream, 1, count, Fill<X>{to, value});
}

/// A score and the first row that attains it.
struct Best {
  float score;
  int32_t row;

  __device__ void take(float other, int32_t at) {
    if (other > score || (other == score && at < row)) {
      score = other;
      row = at;
    }
  }
};

/// The best of the 16 threads that hold the same own lines, in all of them.
__device__ __forceinline__ Best best_of_16(Best best HEBB_WHERE_PARAMETER) {
  HEBB_UNROLL
  for (int bits = 8; bits > 0; bits /= 2) {
    const float score = __shfl_xor_sync(kAllLanes, best.score, bits, 32 HEBB_WHERE_ARGUMENT);
    const int32_t row = __shfl_xor_sync(kAllLanes, best.row, bits, 32 HEBB_WHERE_ARGUMENT);
    best.take(score, row);
  }
  return best;
}

}  // namespace hebb::HEBB_DEVICE::rows
