#pragma once
// Batches of products of matrices, one block of 256 threads for each 64 x 64 tile of a result, 16 sums a thread. In two
// forms that a caller sees alike and tells apart by the type of the stage: PlainStage multiplies fp32 or fp64 on CUDA
// cores, MmaStage (tiles_mma.cuh) TF32 on tensor cores.
#include "kernels/common/cuda/tiles_mma.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int kTileDepth = 16;

template <class S> using TilePanel = S[kTileDepth][kTileSize + 4];  // rows of 16-byte packs

/// On CUDA cores: two shared loads of 16 bytes (fp64: four) for 16 multiply-adds.
template <class S> struct PlainStage {
  TilePanel<S> a, b;

  using Sums = S[4][4];
  static constexpr int kRows = 4, kRowLanes = 8;  // as of MmaStage

  __device__ static constexpr int row_number(int i, int) { return i; }
  __device__ static int row(int number) { return 4 * static_cast<int>(threadIdx.x / 16) + number; }
  __device__ static int column(int, int j) { return 4 * static_cast<int>(threadIdx.x % 16) + j; }
};

__device__ __forceinline__ void load_four(const float* from, float (&to)[4]) {
  const Word4 words = load_16_bytes(from);
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) { to[i] = __uint_as_float(words.word[i]); }
}
__device__ __forceinline__ void load_four(const double* from, double (&to)[4]) {
  HEBB_UNROLL
  for (int i = 0; i < 4; ++i) { to[i] = from[i]; }
}

template <bool kIsTurned, class S>
__device__ __forceinline__ void stage_tile(TilePanel<S>& to, const Operand<kIsTurned, S>& from, int64_t row, int depth,
                                           int end) {
  const int thread = static_cast<int>(threadIdx.x);
  HEBB_UNROLL
  for (int u = 0; u < kTileSize * kTileDepth / kTileThreads; ++u) {  // neighbouring threads read neighbouring addresses
    const int r = kIsTurned ? thread % kTileSize : thread / kTileDepth + u * (kTileThreads / kTileDepth);
    const int d = kIsTurned ? thread / kTileSize + u * (kTileThreads / kTileSize) : thread % kTileDepth;
    const int64_t i = row + r;
    const int at = depth + d;
    to[d][r] = i >= from.first && i < from.last && at < end
                   ? from.data[kIsTurned ? at * from.stride + i : i * from.stride + at]
                   : S(0);
  }
}

/// sums += the tile at (row, column) of sum_{d < depth} a(row, d) b(column, d). All threads call.
template <bool kA, bool kB, class S>
__device__ __forceinline__ void tile_product(PlainStage<S>& s, const Operand<kA, S>& a, int64_t row,
                                             const Operand<kB, S>& b, int64_t column, int64_t depth, S (&sums)[4][4]) {
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  for (int begin = 0, end = static_cast<int>(depth); begin < end; begin += kTileDepth) {
    stage_tile(s.a, a, row, begin, end);
    stage_tile(s.b, b, column, begin, end);
    __syncthreads();
    HEBB_UNROLL
    for (int d = 0; d < kTileDepth; ++d) {
      S left[4], right[4];
      load_four(&s.a[d][4 * y], left);
      load_four(&s.b[d][4 * x], right);
      HEBB_UNROLL
      for (int i = 0; i < 16; ++i) { sums[i / 4][i % 4] += left[i / 4] * right[i % 4]; }
    }
    __syncthreads();
  }
}

/// The same for b and a second matrix that lies like it.
template <bool kA, bool kB, class S>
__device__ __forceinline__ void tile_products(PlainStage<S>& s, const Operand<kA, S>& a, int64_t row,
                                              const Operand<kB, S>& b, const S* second, int64_t column, int64_t depth,
                                              S (&sums)[4][4], S (&second_sums)[4][4]) {
  tile_product(s, a, row, b, column, depth, sums);
  tile_product(s, a, row, Operand<kB, S>{second, b.stride, b.first, b.last}, column, depth, second_sums);
}

/// f(row, column, i, j) for the elements of the tile at (row, column) that lie in [rows, columns]; the thread holds
/// their sums[i][j].
template <class Stage, class F>
__device__ __forceinline__ void tile_each(const Stage&, int64_t row, int64_t column, int64_t rows, int64_t columns,
                                          F&& f) {
  HEBB_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int64_t r = row + Stage::row(Stage::row_number(i / 4, i % 4)), c = column + Stage::column(i / 4, i % 4);
    if (r < rows && c < columns) { f(r, c, i / 4, i % 4); }
  }
}

/// f(row, number) for the thread's rows of the tile at `row` that lie before `rows`; number: row_number of their sums.
template <class Stage, class F>
__device__ __forceinline__ void tile_rows(const Stage&, int64_t row, int64_t rows, F&& f) {
  HEBB_UNROLL
  for (int number = 0; number < Stage::kRows; ++number) {
    const int64_t r = row + Stage::row(number);
    if (r < rows) { f(r, number); }
  }
}

template <int kBlocks, class Stage, class F>
__global__ void __launch_bounds__(kTileThreads, kBlocks) tile_kernel(F f, unsigned row_tiles, unsigned column_tiles) {
  HEBB_DYN_SHARED(raw);
  const unsigned batch = blockIdx.x / (row_tiles * column_tiles), tile = blockIdx.x % (row_tiles * column_tiles);
  f(*reinterpret_cast<Stage*>(raw), static_cast<int>(batch), static_cast<int>(tile / column_tiles) * kTileSize,
    static_cast<int>(tile % column_tiles) * kTileSize);
}

/// f(stage, batch, row, column) by one block for each tile of `batches` matrices [rows, columns] of S, kBlocks of them
/// on an SM if shared memory allows; the stage is an MmaStage if in_tf32 (of fp32), else a PlainStage.
template <class S, int kBlocks = 2, class F>
void each_tile(const char* name, Stream& stream, bool in_tf32, int64_t batches, int64_t rows, int64_t columns,
               const F& f) {
  const int64_t row_tiles = (rows + kTileSize - 1) / kTileSize, column_tiles = (columns + kTileSize - 1) / kTileSize;
  if (batches > 0 && row_tiles > 0 && column_tiles > 0) {
    constexpr int kFitting = sizeof(S) == sizeof(float) ? kBlocks : 1;  // fp64 takes twice the registers
    auto* kernel = tile_kernel<kFitting, PlainStage<S>, F>;
    size_t bytes = sizeof(PlainStage<S>);
    if constexpr (sizeof(S) == sizeof(float)) {
      kernel = in_tf32 ? tile_kernel<kBlocks, MmaStage, F> : kernel;
      bytes = in_tf32 ? sizeof(MmaStage) : bytes;
    } else {
      HEBB_ASSERT(!in_tf32);
    }
    launch(name, kernel, blocks_for(batches * row_tiles * column_tiles, 1), kTileThreads, bytes, stream, f,
           static_cast<unsigned>(row_tiles), static_cast<unsigned>(column_tiles));
  }
}

}  // namespace hebb::HEBB_DEVICE
