#pragma once
// Batches of matrix products, one block of 256 threads for each 64 x 64 tile of a result, 4 x 4 sums a thread. fp32 on CUDA cores: two
// shared loads of 16 bytes for 16 multiply-adds.
#include "kernels/cuda/common/prelude.h"

namespace hebb::HEBB_DEVICE {

constexpr int kTileThreads = 256, kTileSize = 64, kTileDepth = 16;

using TilePanel = float[kTileDepth][kTileSize + 4];  // rows of 16-byte packs

struct TileStage {
  TilePanel a, b;
};

using TileSums = float[4][4];

/// One side of a product: element (i, d) at data[i * row + d * depth]; 0 but for first <= i < last.
template <class T>
struct Operand {
  const T* data;
  int64_t row, depth, first, last;
};

template <class T>
__device__ __forceinline__ void stage_tile(TilePanel& to, const Operand<T>& from, int64_t row, int64_t depth, int64_t end) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool along = from.depth == 1;  // neighbouring threads read neighbouring addresses
  HEBB_UNROLL
  for (int u = 0; u < kTileSize * kTileDepth / kTileThreads; ++u) {
    const int r = along ? thread / kTileDepth + u * (kTileThreads / kTileDepth) : thread % kTileSize;
    const int d = along ? thread % kTileDepth : thread / kTileSize + u * (kTileThreads / kTileSize);
    const int64_t i = row + r, at = depth + d;
    to[d][r] = i >= from.first && i < from.last && at < end ? to_float(from.data[i * from.row + at * from.depth]) : 0.0f;
  }
}

/// sums += the tile at (row, column) of sum_{d < depth} a(row, d) b(column, d). All threads call.
template <class A, class B>
__device__ __forceinline__ void tile_product(TileStage& s, const Operand<A>& a, int64_t row, const Operand<B>& b, int64_t column,
                                             int64_t depth, TileSums& sums HEBB_WHERE_PARAMETER) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  for (int64_t begin = 0; begin < depth; begin += kTileDepth) {
    stage_tile(s.a, a, row, begin, depth);
    stage_tile(s.b, b, column, begin, depth);
    __syncthreads(HEBB_WHERE_HERE);
    HEBB_UNROLL
    for (int d = 0; d < kTileDepth; ++d) {
      const Word4 left = load_16_bytes(&s.a[d][4 * y]), right = load_16_bytes(&s.b[d][4 * x]);
      HEBB_UNROLL
      for (int i = 0; i < 16; ++i) {
        sums[i / 4][i % 4] += __uint_as_float(left.word[i / 4]) * __uint_as_float(right.word[i % 4]);
      }
    }
    __syncthreads(HEBB_WHERE_HERE);
  }
}

/// f(row, column, i, j) for the elements of the tile at (row, column) that lie in [rows, columns]; the thread holds their sums[i][j].
template <class F>
__device__ __forceinline__ void tile_each(int64_t row, int64_t column, int64_t rows, int64_t columns, F&& f) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  HEBB_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int64_t r = row + 4 * y + i / 4, c = column + 4 * x + i % 4;
    if (r < rows && c < columns) {
      f(r, c, i / 4, i % 4);
    }
  }
}

template <class F>
__global__ void __launch_bounds__(kTileThreads, 1) tile_kernel(F f, int64_t row_tiles, int64_t column_tiles) {
  HEBB_SHARED(TileStage, stage);
  const int64_t tile = blockIdx.x % (row_tiles * column_tiles);
  f(stage, static_cast<int64_t>(blockIdx.x / (row_tiles * column_tiles)), tile / column_tiles * kTileSize,
    tile % column_tiles * kTileSize);
}

/// f(stage, batch, row, column) by one block for each tile of `batches` matrices [rows, columns].
template <class F>
void each_tile(const char* name, Stream& stream, int64_t batches, int64_t rows, int64_t columns, const F& f) {
  const int64_t row_tiles = (rows + kTileSize - 1) / kTileSize, column_tiles = (columns + kTileSize - 1) / kTileSize;
  if (batches > 0 && row_tiles > 0 && column_tiles > 0) {
    launch(name, tile_kernel<F>, blocks_for(batches * row_tiles * column_tiles, 1), kTileThreads, 0, stream, f, row_tiles, column_tiles);
  }
}

}  // namespace hebb::HEBB_DEVICE
