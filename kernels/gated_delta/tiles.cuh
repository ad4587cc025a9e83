#pragma once
// What the tensor-core kernels of the gated delta rule share: a chunk's gates, numbers in two parts, products of tiles.
#include "kernels/attention/mma.cuh"
#include "kernels/common/cuda/scan.cuh"
#include "kernels/gated_delta/mma.cuh"

namespace hebb::HEBB_DEVICE::delta_mma {

using attention_mma::kStride;
using attention_mma::lane_number;
using attention_mma::TileOf;
using attention_mma::warp_number;

constexpr int kChunk = 64;
/// Of a scan with these widths of keys and slices: whether there are registers for a second copy of the code.
template <int kWidth, int kSlice> constexpr bool kHasRegisters = kWidth + kSlice < 192;
constexpr int kStateWarps = 4;  // the first of a block that scans chunks

/// Gates of a chunk.
struct Gates {
  double sums[kChunk];                             // gam
  float beta[kChunk], start[kChunk], end[kChunk];  // e^gam, e^(gam_last - gam)
};

/// e^x, x <= 0 or -inf, without branches: 2^x has no larger error than x in fp32.
__device__ __forceinline__ float decay(double x) { return exp2_fast(static_cast<float>(x) * attention_mma::kLog2E); }

/// Two values, each = high + low + 2^-17 of it.
struct SplitPair {
  uint32_t high, low;
  __device__ SplitPair(float first, float second) : high(pack_bf16(first, second)) {
    low = pack_bf16(first - first_of(high), second - second_of(high));
  }
  __device__ __forceinline__ void store(bf16* high_at, bf16* low_at) const {
    attention_mma::store_pair(high_at, high);
    attention_mma::store_pair(low_at, low);
  }
};

/// Logs of decays and strengths of two tokens, in flight.
struct GateInputs {
  float g[2], beta[2];

  __device__ __forceinline__ GateInputs(const delta::HeadInputs<bf16>& in, const DeltaChunk& chunk) {
    HEBB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int token = 2 * lane_number() + i;
      const bool exists = token < static_cast<int>(chunk.length);
      const int64_t at = (chunk.token + token) * in.gate_stride;
      g[i] = exists ? in.g[at] : 0.0f;
      beta[i] = exists ? in.beta[at] : 0.0f;
    }
  }
};

/// By one warp. Sums are taken in double: see delta::Decays.
__device__ __forceinline__ void load_gates(Gates& gates, const GateInputs& in) {
  const int lane = lane_number();
  double gam[2] = {in.g[0], in.g[1]};
  const double pair = gam[0] + gam[1];
  const double sum = warp_scan(pair, lane);
  const double last = __shfl_sync(kAllLanes, sum, 31);
  gam[0] += sum - pair;
  gam[1] = sum;
  HEBB_UNROLL
  for (int i = 0; i < 2; ++i) {
    gates.beta[2 * lane + i] = in.beta[i];
    gates.sums[2 * lane + i] = gam[i];
    gates.start[2 * lane + i] = decay(gam[i]);
    gates.end[2 * lane + i] = decay(last - gam[i]);
  }
}

// ---- sums and operands of state warps

/// Sums of mma that a warp holds: 16 kRowTiles rows, 8 kTiles of the slice's channels.
template <int kRowTiles, int kTiles> struct StateRows {
  float x[kRowTiles][kTiles][4] = {};

  /// f(first value, second value, row, first channel of the slice) for all pairs that the thread holds.
  template <class F> __device__ __forceinline__ void each_pair(F&& f) {
    HEBB_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      HEBB_UNROLL
      for (int i = 0; i < 4 * kTiles; i += 2) {
        f(x[m][i / 4][i % 4], x[m][i / 4][i % 4 + 1], 16 * m + lane_number() / 4 + i % 4 / 2 * 8,
          8 * (warp_number() % kStateWarps * kTiles + i / 4) + lane_number() % 4 * 2);
      }
    }
  }
  /// The same for pairs of rows below `rows` and channels below `channels`. Nearly always that is all of them: kUniform
  /// asks once, for a copy of the code without a branch for each pair.
  template <bool kUniform, class F> __device__ __forceinline__ void each_pair_within(int rows, int channels, F&& f) {
    if (kUniform && rows >= 16 * kRowTiles && channels >= 8 * kStateWarps * kTiles) {
      each_pair(f);
    } else {
      each_pair([&](float first, float second, int row, int c) {
        if (row < rows && c < channels) { f(first, second, row, c); }
      });
    }
  }
  __device__ __forceinline__ void scale(float factor) {
    each_pair([&](float& first, float& second, int, int) {
      first *= factor;
      second *= factor;
    });
  }
};

/// 16 rows of 8 channels as a right operand, in two parts.
struct Operand {
  uint32_t high[2], low[2];

  Operand() = default;
  /// From the sums of a tile.
  __device__ __forceinline__ explicit Operand(const float (&x)[4]) {
    HEBB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const SplitPair parts(x[2 * i], x[2 * i + 1]);
      high[i] = transpose_matrix(parts.high);
      low[i] = transpose_matrix(parts.low);
    }
  }
};

/// 16 x 16 from a row and column of a tile on, or of the transposed tile, as a left operand.
template <bool kTransposed, int kRows, int kWidth>
__device__ __forceinline__ void load_left(uint32_t (&left)[4], const TileOf<kRows, kWidth>& tile, int row, int column) {
  const int lane = lane_number();
  const int at = kTransposed ? (column + lane / 16 * 8 + lane % 8) * kStride<kWidth> + row + lane / 8 % 2 * 8
                             : (row + lane % 16) * kStride<kWidth> + column + lane / 16 * 8;
  load_matrices<4, kTransposed>(left, &tile.data[at]);
}

/// sums += tile (or its transpose) x right: 16 of its columns, from `column` on.
template <bool kTransposed, int kRows, int kWidth, int kRowTiles, int kTiles>
__device__ __forceinline__ void add_rows(StateRows<kRowTiles, kTiles>& sums, const TileOf<kRows, kWidth>& tile,
                                         int column, const Operand (&right)[kTiles]) {
  constexpr int kTogether = kRowTiles < 4 ? kRowTiles : 4, kSums = kTogether * kTiles;
  HEBB_UNROLL
  for (int first = 0; first < kRowTiles; first += kTogether) {
    uint32_t left[kTogether][4];
    HEBB_UNROLL
    for (int m = 0; m < kTogether; ++m) { load_left<kTransposed>(left[m], tile, 16 * (first + m), column); }
    HEBB_UNROLL
    for (int i = 0; i < 2 * kSums; ++i) {  // neighbours have sums of their own
      const int m = i / kTiles % kTogether, n = i % kTiles;
      mma_bf16(sums.x[first + m][n], left[m], i < kSums ? right[n].high : right[n].low);
    }
  }
}

/// sums += a block of 16 tokens by 16, or its transpose, x right; of the two parts of each all but the product of the
/// lower ones.
template <bool kTransposed, int kTiles>
__device__ __forceinline__ void add_block(float (&sums)[kTiles][4], const TileOf<kChunk, kChunk> (&matrix)[2], int row,
                                          int column, const Operand (&right)[kTiles]) {
  uint32_t high[4], low[4];
  load_left<kTransposed>(high, matrix[0], 16 * row, 16 * column);
  load_left<kTransposed>(low, matrix[1], 16 * row, 16 * column);
  HEBB_UNROLL
  for (int i = 0; i < 3 * kTiles; ++i) {
    const int n = i % kTiles;
    mma_bf16(sums[n], i < 2 * kTiles ? high : low, i / kTiles == 1 ? right[n].low : right[n].high);
  }
}

template <int kTiles, int kRowTiles>
__device__ __forceinline__ void make_operands(Operand (&to)[kTiles], const StateRows<kRowTiles, kTiles>& from,
                                              int row_tile) {
  HEBB_UNROLL
  for (int n = 0; n < kTiles; ++n) { to[n] = Operand(from.x[row_tile][n]); }
}

}  // namespace hebb::HEBB_DEVICE::delta_mma
