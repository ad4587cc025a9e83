#pragma once
// What the tensor-core attention kernels share: bf16 tiles in shared memory, products of 16 x 8 x 16, loops over the
// intervals.
//
// As in tile.cuh the query heads of a kv head are stacked: row r = token * group + g of a key space. Head sizes
// are padded with zeros to a width of 32, 64, 96 or 128. A row in shared memory takes 16 bytes more than its channels:
// an odd number of 16-byte units, so the eight rows that ldmatrix reads at once lie in different banks (what a swizzle
// is for), at distances that are constants.
#include <algorithm>

#include "kernels/attention/tile.cuh"
#include "kernels/common/cuda/async_copy.cuh"
#include "kernels/common/cuda/mma.cuh"

namespace hebb::HEBB_DEVICE::attention_mma {

using attention::Inputs;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr float kLog2E = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;

template <int kWidth> constexpr int kStride = kWidth + 8;  // elements between rows in shared memory

/// Rows of kWidth channels in shared memory.
template <int kRows, int kWidth> struct alignas(16) TileOf { bf16 data[kRows * kStride<kWidth>]; };

__device__ __forceinline__ int lane_number() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int warp_number() { return static_cast<int>(threadIdx.x / 32); }

// ---- where a block works

/// Order of the blocks of a grid of tiles x heads (of all spaces). Blocks that run at the same time share what their
/// heads stream, so heads come in sections that L2 holds; within a section the tiles with the most work come first.
struct Order {
  int64_t tiles, heads, section;

  Order(int64_t tiles, int64_t heads, int64_t bytes_per_head)
      : tiles(tiles),
        heads(heads),
        section(std::clamp<int64_t>(kSectionBytes / std::max<int64_t>(bytes_per_head, 1), 1, heads)) {}
  unsigned blocks() const { return blocks_for(tiles * heads, 1); }

  static constexpr int64_t kSectionBytes = 32 << 20;  // of 50 MB
};

struct HeadTile {
  int64_t space, tile;
  int head;
};

__device__ __forceinline__ HeadTile head_tile(const Order& order, int kv_heads, bool last_tile_first) {
  const int64_t block = blockIdx.x, begin = block / (order.section * order.tiles) * order.section;
  const int64_t left = order.heads - begin, size = left < order.section ? left : order.section;
  const int64_t rest = block - begin * order.tiles, head = begin + rest % size, tile = rest / size;
  return {head / kv_heads, last_tile_first ? order.tiles - 1 - tile : tile, static_cast<int>(head % kv_heads)};
}

/// Consecutive stacked rows of a key space.
struct StackedRows {
  int64_t token, line;  // number in the batch of the first row's token; line of that token's first row
  int64_t left;         // rows from the first on
  int rest;             // rows of that token before the first
  int group, heads, count;
  float inverse_group;

  StackedRows() = default;
  __device__ StackedRows(const Inputs<bf16>& a, const HeadTile& at, int64_t first, int limit)
      : left(a.rows() - first), group(a.group), heads(a.heads), inverse_group(1.0f / static_cast<float>(a.group)) {
    const int64_t in_space = first / a.group;
    rest = static_cast<int>(first - in_space * a.group);
    token = at.space * a.tokens + in_space;
    line = token * a.heads + static_cast<int64_t>(at.head) * a.group;
    count = left < limit ? static_cast<int>(left) : limit;
  }
  /// The rows from `step` on.
  __device__ void advance(int step, int limit) {
    const int tokens = tokens_before(step);
    token += tokens;
    line += static_cast<int64_t>(tokens) * heads;
    rest += step - tokens * group;
    left -= step;
    count = left < limit ? static_cast<int>(left) : limit;
  }
  /// Tokens between the first row and this one; the half keeps the quotient away from whole numbers.
  __device__ int tokens_before(int row) const {
    return static_cast<int>((static_cast<float>(rest + row) + 0.5f) * inverse_group);
  }
  __device__ int64_t token_of(int row) const { return token + tokens_before(row); }
  /// Line of q, o, lse; -1 behind the last row.
  __device__ int64_t line_of(int row) const { return row < count ? line_at(row) : -1; }
  /// The same as if there were more rows.
  __device__ int64_t line_at(int row) const {
    return line + static_cast<int64_t>(tokens_before(row)) * (heads - group) + rest + row;
  }
  /// Whether rows that are `step` apart, a power of two, have lines at a constant distance: a step has whole tokens.
  __device__ bool are_even(int step) const { return (group & (group - 1)) == 0 && group <= step; }
};

// ---- which keys a tile of rows sees

/// Lines and intervals of kRows rows. Rows that do not exist have the line -1 and see nothing.
template <int kRows> struct Intervals {
  int64_t line[kRows];
  int32_t lo[kRows], hi[kRows];

  __device__ __forceinline__ void load(const Inputs<bf16>& a, const StackedRows& rows) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows; i += kThreads) {
      const int64_t token = rows.token_of(i < rows.count ? i : rows.count - 1);
      hi[i] = a.hi[token];
      lo[i] = i < rows.count ? a.lo[token] : hi[i];
      line[i] = rows.line_of(i);
    }
  }
  /// First row whose interval ends behind the key; kRows if none does.
  __device__ int first_row_behind(int key) const {
    return first_where(kRows, [&](int row) { return hi[row] > key; });
  }
};

/// The tiles of kKeys keys that a tile of rows goes over; it passes over what no row sees.
template <int kRows, int kKeys> struct TileLoop {
  const Intervals<kRows>& intervals;
  int rows, last;  // rows that exist; the first key that none of them sees any more
  bool has_gaps;   // keys before it, behind the first one, that no row sees

  __device__ TileLoop(const Intervals<kRows>& i, int rows)
      : intervals(i), rows(rows), last(i.hi[rows - 1]), has_gaps(false) {
    HEBB_UNROLL
    for (int row = lane_number(); row < kRows; row += 32) {
      const bool gap = row > 0 && i.lo[row] > i.hi[row - 1];
      has_gaps = __any_sync(kAllLanes, gap) || has_gaps;
    }
  }
  __device__ int first_tile() const { return tile_from(intervals.lo[0]); }
  /// First key of the next tile at or behind `key`; there is none if that is not below `last`.
  __device__ int tile_from(int key) const {
    if (!has_gaps || key >= last) { return key; }
    const int low = intervals.lo[intervals.first_row_behind(key)];
    return low > key ? low : key;
  }
  /// Where there are gaps, unseen keys may hold anything, and 0 times that is not 0: their rows become zeros. Ends with
  /// a barrier.
  template <int kWidth>
  __device__ __forceinline__ void clear_unseen(TileOf<kKeys, kWidth>& rows_of_keys, int tile) const {
    for (int i = static_cast<int>(threadIdx.x); i < kKeys; i += kThreads) {
      const int row = intervals.first_row_behind(tile + i);
      for (int c = 0; (row == kRows || intervals.lo[row] > tile + i) && c < kWidth; c += 8) {
        store_16_bytes(&rows_of_keys.data[i * kStride<kWidth> + c], Word4{});
      }
    }
    __syncthreads();
  }
  __device__ bool all_see(int tile) const { return intervals.lo[rows - 1] <= tile && tile + kKeys <= intervals.hi[0]; }
};

// ---- tiles

/// How the threads share a copy: each has pieces of 16 bytes at one channel, of rows that are kStep apart.
template <int kRows, int kWidth> struct Pieces {
  static constexpr int kPerRow = kWidth <= 32 ? 4 : kWidth <= 64 ? 8 : 16;  // those behind the width are idle
  static constexpr int kStep = kThreads / kPerRow, kCount = kRows / kStep;
  int row = static_cast<int>(threadIdx.x) / kPerRow, channel = static_cast<int>(threadIdx.x) % kPerRow * 8;
};

/// Starts the copies of a thread's pieces: from its first row, `from`, on, every `step` elements.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_pieces(TileOf<kRows, kWidth>& tile, const bf16* from, int64_t step, int width,
                                            int count) {
  using P = Pieces<kRows, kWidth>;
  const P piece;
  if (piece.channel < width) {
    from += piece.channel;
    bf16* const to = &tile.data[piece.row * kStride<kWidth> + piece.channel];
    HEBB_UNROLL
    for (int i = 0; i < P::kCount; ++i) {
      copy_async_16(to + i * P::kStep * kStride<kWidth>, from, piece.row + i * P::kStep < count ? 16 : 0);
      from += step;
    }
  }
}

/// Starts a copy of rows that are `stride` elements apart in global memory; those from `count` on become zeros.
/// Channels from `width` on are left alone.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_rows(TileOf<kRows, kWidth>& tile, const bf16* from, int64_t stride, int width,
                                          int count) {
  using P = Pieces<kRows, kWidth>;
  copy_pieces(tile, from + P().row * stride, P::kStep * stride, width, count);
}

/// A tile and the tensor [lines, width] that its rows come from.
template <int kRows, int kWidth> struct LineCopy {
  TileOf<kRows, kWidth>& tile;
  const bf16* from;
  int width;
};

/// The same for rows at line(row) of some tensors; a line of -1 gives zeros.
template <int kRows, int kWidth, int kTensors, class Line>
__device__ __forceinline__ void copy_lines(const LineCopy<kRows, kWidth> (&copies)[kTensors], Line&& line) {
  using P = Pieces<kRows, kWidth>;
  const P piece;
  HEBB_UNROLL
  for (int i = 0; i < P::kCount; ++i) {
    const int row = piece.row + i * P::kStep;
    const int64_t l = line(row);
    HEBB_UNROLL
    for (const LineCopy<kRows, kWidth>& copy : copies) {
      if (piece.channel < copy.width) {
        copy_async_16(&copy.tile.data[row * kStride<kWidth> + piece.channel],
                      copy.from + (l < 0 ? 0 : l * copy.width) + piece.channel, l < 0 ? 0 : 16);
      }
    }
  }
}

/// The same for even rows: an address and a distance for each tensor instead of a line for each row.
template <int kRows, int kWidth, int kTensors>
__device__ __forceinline__ void copy_even_lines(const LineCopy<kRows, kWidth> (&copies)[kTensors],
                                                const StackedRows& rows) {
  using P = Pieces<kRows, kWidth>;
  const int64_t line = rows.line_at(P().row), step = rows.line_at(P().row + P::kStep) - line;
  HEBB_UNROLL
  for (const LineCopy<kRows, kWidth>& copy : copies) {
    copy_pieces(copy.tile, copy.from + line * copy.width, step * copy.width, copy.width, rows.count);
  }
}

/// Starts copies of keys, values and biases from key `tile` on, up to key `last`.
template <int kKeys, int kWidth>
__device__ __forceinline__ void copy_keys(TileOf<kKeys, kWidth>& keys, TileOf<kKeys, kWidth>& values, float* bias,
                                          const Inputs<bf16>& in, const HeadTile& at, int tile, int last) {
  const int64_t line = (at.space * in.keys + tile) * in.kv_heads + at.head;
  const int count = last - tile, i = static_cast<int>(threadIdx.x);
  copy_rows(keys, in.k + line * in.d, static_cast<int64_t>(in.kv_heads) * in.d, in.d, count);
  copy_rows(values, in.v + line * in.dv, static_cast<int64_t>(in.kv_heads) * in.dv, in.dv, count);
  if (in.bias != nullptr && i < kKeys) {
    copy_async_4(bias + i, in.bias + line + static_cast<int64_t>(i) * in.kv_heads, i < count ? 4 : 0);
  }
}

/// Zeros in the channels from `width` on, once: copies leave them alone.
template <int kRows, int kWidth> __device__ __forceinline__ void clear_padding(TileOf<kRows, kWidth>& tile, int width) {
  const int padding = kWidth - width;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * padding; i += kThreads) {
    tile.data[i / padding * kStride<kWidth> + width + i % padding] = bf16{0};
  }
}

/// sums[m][j] += a_row . b_row for rows 16 m of a and 8 j of b, over kWidth channels.
template <int kWidth, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void multiply_rows(float (&sums)[kRowTiles][kColumnTiles][4], const bf16* a, const bf16* b) {
  constexpr int stride = kStride<kWidth>;
  const int lane = lane_number();
  a += lane % 16 * stride + lane / 16 * 8;
  b += (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
  HEBB_UNROLL
  for (int c = 0; c < kWidth; c += 16) {
    uint32_t left[kRowTiles][4];
    HEBB_UNROLL
    for (int m = 0; m < kRowTiles; ++m) { load_matrices<4, false>(left[m], a + 16 * m * stride + c); }
    HEBB_UNROLL
    for (int j = 0; j < kColumnTiles; j += 2) {
      uint32_t right[4];
      load_matrices<4, false>(right, b + 8 * j * stride + c);
      const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
      HEBB_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        mma_bf16(sums[m][j], left[m], first);
        mma_bf16(sums[m][j + 1], left[m], second);
      }
    }
  }
}

/// sums[m][j] += weights (rows 16 m) x b: 16 kSteps rows of b, channels 8 j of it.
template <int kWidth, int kRowTiles, int kSteps>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[kRowTiles][kWidth / 8][4],
                                                  const uint32_t (&weights)[kRowTiles][kSteps][4], const bf16* b) {
  constexpr int stride = kStride<kWidth>;
  const int lane = lane_number();
  b += lane % 16 * stride + lane / 16 * 8;
  HEBB_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    HEBB_UNROLL
    for (int j = 0; j < kWidth / 8; j += 2) {
      uint32_t right[4];
      load_matrices<4, true>(right, b + 16 * step * stride + 8 * j);
      const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
      HEBB_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        mma_bf16(sums[m][j], weights[m][step], first);
        mma_bf16(sums[m][j + 1], weights[m][step], second);
      }
    }
  }
}

/// Results of one product become the left operand of the next: the layouts agree.
template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void pack_weights(uint32_t (&weights)[kRowTiles][kColumnTiles / 2][4],
                                             const float (&values)[kRowTiles][kColumnTiles][4]) {
  HEBB_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    HEBB_UNROLL
    for (int j = 0; j < kColumnTiles; ++j) {
      weights[m][j / 2][j % 2 * 2] = pack_bf16(values[m][j][0], values[m][j][1]);
      weights[m][j / 2][j % 2 * 2 + 1] = pack_bf16(values[m][j][2], values[m][j][3]);
    }
  }
}

__device__ __forceinline__ uint32_t load_pair(const bf16* from) { return load_words<1>(from).word[0]; }

__device__ __forceinline__ void store_pair(bf16* to, uint32_t pair) { store_words<1>(to, {{pair}}); }

/// to[line(row)] = or += factors[row] * sums[row] for the warp's rows of `width` channels, `stride` apart. Two channels
/// a store.
template <int kWidth, int kRowTiles, int kColumnTiles, class Line>
__device__ __forceinline__ void write_rows(bf16* to, int width, int64_t stride, Line&& line,
                                           const float (&sums)[kRowTiles][kColumnTiles][4],
                                           const float (&factors)[2 * kRowTiles], bool accumulate) {
  static_assert(kColumnTiles >= kWidth / 8);
  HEBB_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int64_t l = line(8 * i + lane_number() / 4);
    bf16* const row = to + l * stride + lane_number() % 4 * 2;
    HEBB_UNROLL
    for (int j = 0; j < kWidth / 8; ++j) {
      if (l >= 0 && 8 * j < width) {
        float first = factors[i] * sums[i / 2][j][i % 2 * 2], second = factors[i] * sums[i / 2][j][i % 2 * 2 + 1];
        if (accumulate) {
          const uint32_t before = load_pair(row + 8 * j);
          first += first_of(before);
          second += second_of(before);
        }
        store_pair(row + 8 * j, pack_bf16(first, second));
      }
    }
  }
}

/// Sum or maximum over the four lanes that hold parts of the same rows.
__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}
__device__ __forceinline__ float max_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

// ---- softmax in registers

/// Of the rows 8 i + lane / 4 of a warp, in one lane.
template <int kRowTiles> struct alignas(16) RowValues { float of[2 * kRowTiles]; };

/// Scores become weights 2^(factor (score - top)) with the new maximum `top` of each row; out and the lane's parts of
/// the rows' sums are brought to it.
template <int kRowTiles, int kKeyTiles, int kColumnTiles>
__device__ __forceinline__ void add_to_softmax(float (&scores)[kRowTiles][kKeyTiles][4], float factor,
                                               RowValues<kRowTiles>& tops, RowValues<kRowTiles>& sums,
                                               float (&out)[kRowTiles][kColumnTiles][4]) {
  RowValues<kRowTiles> top = tops, sum = sums;
  HEBB_UNROLL
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int m = i / 2, at = i % 2 * 2;
    float most = top.of[i];
    HEBB_UNROLL
    for (int j = 0; j < kKeyTiles; ++j) { most = fmaxf(most, fmaxf(scores[m][j][at], scores[m][j][at + 1])); }
    most = max_of_quad(most);
    const float zero = most == -INFINITY ? 0.0f : most * factor;  // no key so far, or only keys with a bias of -inf
    const float shrink = exp2_fast(top.of[i] * factor - zero);
    float added = 0;
    HEBB_UNROLL
    for (int j = 0; j < kKeyTiles; ++j) {
      HEBB_UNROLL
      for (int e = at; e < at + 2; ++e) {
        scores[m][j][e] = exp2_fast(fmaf(scores[m][j][e], factor, -zero));
        added += scores[m][j][e];
      }
    }
    top.of[i] = most;
    sum.of[i] = sum.of[i] * shrink + added;
    HEBB_UNROLL
    for (int j = 0; j < kColumnTiles; ++j) {
      out[m][j][at] *= shrink;
      out[m][j][at + 1] *= shrink;
    }
  }
  tops = top;
  sums = sum;
}

// ---- host

/// Whether blocks with shared memory of this type fit where attention_cores() says so.
template <template <int> class Shared> constexpr bool fits_shared_memory() {
  return static_cast<int64_t>(sizeof(Shared<96>)) <= attention_shared_bytes(96) &&
         static_cast<int64_t>(sizeof(Shared<128>)) <= attention_shared_bytes(128);
}

/// Calls f(width as a constant) for heads of up to `width` channels.
template <class F> void dispatch_padded(int width, F&& f) { dispatch_number<32, 64, 96, 128>(width, f); }

void forward(Stream& stream, const AttentionForward& a);
void backward(Stream& stream, const AttentionBackward& a, const AttentionBackwardScratch& scratch);

}  // namespace hebb::HEBB_DEVICE::attention_mma
