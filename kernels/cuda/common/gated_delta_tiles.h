#pragma once
// What the tensor-core kernels of the gated delta rule share: a chunk's gates, rows and products in shared memory, the triangular
// system, and the state, of which a block of 8 warps holds 64 value channels in registers.
#include "kernels/cuda/common/attention_mma.h"
#include "kernels/cuda/common/gated_delta_mma.h"
#include "kernels/cuda/common/prefetch.h"

namespace hebb::HEBB_DEVICE::delta_mma {

using attention_mma::kStride;
using attention_mma::lane_number;
using attention_mma::TileOf;
using attention_mma::warp_number;

constexpr int kChunk = 64, kSlice = 64, kThreads = 256;

/// What a block that walks over the chunks of a row works on, in shared memory: registers are short.
struct Task {
  delta::HeadInputs<bf16> in;
  int64_t first_token, first_chunk, chunks;  // of the row
};

__device__ __forceinline__ Task task_of(const delta::Sizes& n, const delta::Inputs<bf16>& in, const delta::Chunks& chunks, int64_t task) {
  const int64_t row = task / n.value_heads, first = chunks.rows[row];
  return {in.head(n, task % n.value_heads), row * n.length, first, chunks.rows[row + 1] - first};
}

/// Channels of the block's slice that exist.
__device__ __forceinline__ int channels_behind(int64_t value_dim, int first_channel) {
  const int left = static_cast<int>(value_dim) - first_channel;
  return left < kSlice ? left : kSlice;
}

struct alignas(16) Four {
  float x[4];
};

using Triangle = Four[kChunk][kChunk / 4 + 1];  // a system's matrix below, or above, its diagonal
using Column = float[kChunk][kSlice + 4];       // right sides and solutions

/// Gates of a chunk.
struct Gates {
  double sums[kChunk];                             // gam
  float beta[kChunk], start[kChunk], end[kChunk];  // e^gam, e^(gam_last - gam)
};

/// Two values, each = high + low + 2^-17 of it.
struct SplitPair {
  uint32_t high, low;
  __device__ SplitPair(float first, float second) : high(pack_bf16(first, second)) {
    low = pack_bf16(first - attention_mma::first_of(high), second - attention_mma::second_of(high));
  }
  __device__ __forceinline__ void store(bf16* high_at, bf16* low_at) const {
    attention_mma::store_pair(high_at, high);
    attention_mma::store_pair(low_at, low);
  }
};

/// The part of the state that a warp holds: 16 rows, 8 kColumnTiles channels.
template <int kWidth>
struct State {
  static constexpr int kColumnTiles = kWidth / 16;  // of the kWidth / 16 x 8 tiles that 8 warps share
  float x[1][kColumnTiles][4];

  __device__ static int row() { return warp_number() % (kWidth / 16) * 16; }
  __device__ static int column() { return warp_number() / (kWidth / 16) * 8 * kColumnTiles; }
  /// f(first value, second value, row, first channel) for all pairs that the thread holds.
  template <class F>
  __device__ __forceinline__ void each_pair(F&& f) {
    HEBB_UNROLL
    for (int i = 0; i < 4 * kColumnTiles; i += 2) {
      f(x[0][i / 4][i % 4], x[0][i / 4][i % 4 + 1], row() + lane_number() / 4 + i % 4 / 2 * 8,
        column() + i / 4 * 8 + lane_number() % 4 * 2);
    }
  }
  __device__ __forceinline__ void scale(float factor) {
    HEBB_UNROLL
    for (int i = 0; i < 4 * kColumnTiles; ++i) {
      x[0][i / 4][i % 4] *= factor;
    }
  }
  __device__ __forceinline__ void clear() {
    HEBB_UNROLL
    for (int i = 0; i < 4 * kColumnTiles; ++i) {
      x[0][i / 4][i % 4] = 0;
    }
  }
};

/// Rows of `count` tokens; zeros behind them and behind `width` channels.
template <int kWidth>
__device__ __forceinline__ void load_rows(TileOf<kChunk, kWidth>& tile, const bf16* from, int64_t stride, int count, int width) {
  HEBB_UNROLL
  for (int i = 0; i < kChunk * kWidth / 8 / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads, row = at / (kWidth / 8), c = at % (kWidth / 8) * 8;
    const bool exists = row < count && c < width;
    store_16_bytes(&tile.data[row * kStride<kWidth> + c], exists ? load_16_bytes(from + row * stride + c) : Word4{});
  }
}

/// Asks for rows of `width` channels in L2. A block has one chunk in its hands: without this each one would begin with a wait for HBM.
__device__ __forceinline__ void prefetch_rows(const bf16* from, int64_t stride, int count, int width) {
  const int lines = width > 64 ? 2 : 1;
  for (int i = static_cast<int>(threadIdx.x); i < count * lines; i += kThreads) {
    prefetch_line(from + i / lines * stride + i % lines * 64);
  }
}
/// The same for keys, gates and, where `queries`, queries of tokens from `token` on.
__device__ __forceinline__ void prefetch_tokens(const delta::HeadInputs<bf16>& in, int64_t token, int count, int dk, bool queries) {
  prefetch_rows(in.k + token * in.key_stride, in.key_stride, count, dk);
  if (queries) {
    prefetch_rows(in.q + token * in.key_stride, in.key_stride, count, dk);
  }
  if (static_cast<int>(threadIdx.x) < count) {
    const int64_t at = (token + threadIdx.x) * in.gate_stride;
    prefetch_line(in.g + at);
    prefetch_line(in.beta + at);
  }
}

/// By one warp. Sums are taken in double: see delta::Decays.
__device__ __forceinline__ void load_gates(Gates& gates, const delta::HeadInputs<bf16>& in,
                                           const delta::Chunk& chunk HEBB_WHERE_PARAMETER) {
  const int lane = lane_number(), length = static_cast<int>(chunk.length);
  double gam[2];
  HEBB_UNROLL
  for (int i = 0; i < 2; ++i) {
    const bool exists = 2 * lane + i < length;
    const int64_t at = (chunk.token + 2 * lane + i) * in.gate_stride;
    gam[i] = exists ? static_cast<double>(in.g[at]) : 0.0;
    gates.beta[2 * lane + i] = exists ? in.beta[at] : 0.0f;
  }
  const double pair = gam[0] + gam[1];
  double sum = pair;
  HEBB_UNROLL
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, sum, step, 32 HEBB_WHERE_ARGUMENT);
    sum += lane >= step ? before : 0.0;
  }
  const double last = __shfl_sync(kAllLanes, sum, 31, 32 HEBB_WHERE_ARGUMENT);
  gam[0] += sum - pair;
  gam[1] = sum;
  HEBB_UNROLL
  for (int i = 0; i < 2; ++i) {
    gates.sums[2 * lane + i] = gam[i];
    gates.start[2 * lane + i] = delta::decay(gam[i]);
    gates.end[2 * lane + i] = delta::decay(last - gam[i]);
  }
}

/// sums += 16 rows of kWidth x state, of which both parts.
template <int kWidth>
__device__ __forceinline__ void read_state(float (&sums)[1][8][4], const bf16* rows,
                                           const TileOf<kWidth, kSlice> (&state)[2] HEBB_WHERE_PARAMETER) {
  const int lane = lane_number();
  uint32_t left[1][1][4];
  HEBB_UNROLL
  for (int c = 0; c < kWidth; c += 16) {
    load_matrices<4, false>(left[0][0], rows + lane % 16 * kStride<kWidth> + lane / 16 * 8 + c HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, left, state[0].data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
    attention_mma::add_weighted_rows<kSlice>(sums, left, state[1].data + c * kStride<kSlice> HEBB_WHERE_ARGUMENT);
  }
}

/// state += rowsᵀ writes, of which both parts.
template <int kWidth>
__device__ __forceinline__ void add_writes(State<kWidth>& state, const TileOf<kChunk, kWidth>& rows,
                                           const TileOf<kChunk, kSlice> (&writes)[2] HEBB_WHERE_PARAMETER) {
  const int lane = lane_number();
  const bf16* const first_row = &rows.data[(lane / 16 * 8 + lane % 8) * kStride<kWidth> + lane / 8 % 2 * 8 + state.row()];
  HEBB_UNROLL
  for (int token = 0; token < kChunk; token += 16) {
    uint32_t left[4];
    load_matrices<4, true>(left, first_row + token * kStride<kWidth> HEBB_WHERE_ARGUMENT);
    HEBB_UNROLL
    for (const TileOf<kChunk, kSlice>& part : writes) {
      HEBB_UNROLL
      for (int n = 0; n < State<kWidth>::kColumnTiles; n += 2) {
        uint32_t right[4];
        load_matrices<4, true>(right, &part.data[(token + lane % 16) * kStride<kSlice> + state.column() + 8 * n + lane / 16 * 8]
                                          HEBB_WHERE_ARGUMENT);
        const uint32_t first[2] = {right[0], right[1]}, second[2] = {right[2], right[3]};
        mma_bf16(state.x[0][n], left, first HEBB_WHERE_ARGUMENT);
        mma_bf16(state.x[0][n + 1], left, second HEBB_WHERE_ARGUMENT);
      }
    }
  }
}

/// Solves (1 + L) x = x from the first row on, or where kFromLast (1 + U) x = x from the last one. Blocks of 16 rows: the first threads
/// solve one, a column each, and all threads take it out of the rest.
template <bool kFromLast>
__device__ __forceinline__ void solve(const Triangle& matrix, Column& x, int length HEBB_WHERE_PARAMETER) {
  const int column = static_cast<int>(threadIdx.x) % kSlice, part = static_cast<int>(threadIdx.x) / kSlice;
  const auto nth = [](int i) { return kFromLast ? 15 - i : i; };  // row of a block in the order in which they are solved
  const int blocks = (length + 15) / 16;
  for (int block = 0; block < blocks; ++block) {
    const int first = (kFromLast ? blocks - 1 - block : block) * 16;
    float solved[16];
    if (part == 0) {
      HEBB_UNROLL
      for (int i = 0; i < 16; ++i) {
        const int row = first + nth(i);
        solved[i] = x[row][column];
        HEBB_UNROLL
        for (int j = 0; j < i; ++j) {
          solved[i] -= matrix[row][first / 4 + nth(j) / 4].x[nth(j) % 4] * solved[j];
        }
        x[row][column] = solved[i];
      }
    }
    __syncthreads(HEBB_WHERE_HERE);
    HEBB_UNROLL
    for (int i = 0; i < 16; ++i) {
      solved[i] = x[first + i][column];
    }
    const int last = kFromLast ? first : length;
    for (int row = kFromLast ? part : first + 16 + part; row < last; row += kThreads / kSlice) {
      float sum = x[row][column];
      HEBB_UNROLL
      for (int j = 0; j < 16; j += 4) {
        const Four l = matrix[row][(first + j) / 4];
        HEBB_UNROLL
        for (int e = 0; e < 4; ++e) {
          sum -= l.x[e] * solved[j + e];
        }
      }
      x[row][column] = sum;
    }
    __syncthreads(HEBB_WHERE_HERE);
  }
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
