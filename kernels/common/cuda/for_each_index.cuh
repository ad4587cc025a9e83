#pragma once
#include "kernels/common/cuda/launch.cuh"
#include "kernels/common/cuda/math.cuh"
// Part of prelude.cuh: kernels without barriers, each the body of a function object of pointers and numbers.
// Neighbours in a row are neighbours in a warp, so that accesses are coalesced. HBM moves about one bf16 element for
// every 15 instructions of a thread: what is to be bound by it takes packs (vectors.cuh), not elements.

namespace hebb::HEBB_DEVICE {

constexpr int kEachThreads = 256;
constexpr unsigned kMostSecond = 65535;  // of a grid's second dimension

// Grid: rows x blocks of columns or, as a grid's second dimension ends at 65,535, the other way round.
template <class F>
__global__ void __launch_bounds__(kEachThreads) each_element_kernel(F f, int64_t columns, bool rows_are_second) {
  const int64_t block = rows_are_second ? blockIdx.x : blockIdx.y, row = rows_are_second ? blockIdx.y : blockIdx.x;
  const int64_t column = block * blockDim.x + threadIdx.x;
  if (column < columns) { f(row, column); }
}

template <class F>
__global__ void __launch_bounds__(kEachThreads) each_group_kernel(F f, int64_t rows, unsigned lanes) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kEachThreads / lanes) + threadIdx.x / lanes;
  if (row < rows) { f(row, static_cast<int>(threadIdx.x % lanes)); }
}

/// f(row, column) for each element of [rows, columns], on a thread of its own. More than 2^24 - 256 columns: of up to
/// 65,535 rows.
template <class F> void each_element(const char* name, Stream& stream, int64_t rows, int64_t columns, const F& f) {
  if (rows > 0 && columns > 0) {
    const int64_t threads = columns < kEachThreads ? (columns + 31) / 32 * 32 : kEachThreads;
    const unsigned blocks = blocks_for(columns, threads), lines = blocks_for(rows, 1);
    const bool rows_are_second = blocks > kMostSecond;
    HEBB_ASSERT(!rows_are_second || lines <= kMostSecond);
    launch(name, each_element_kernel<F>, rows_are_second ? dim3(blocks, lines) : dim3(lines, blocks),
           static_cast<unsigned>(threads), 0, stream, f, columns, rows_are_second);
  }
}

/// f(row, lane) by a group of `lanes` neighbouring lanes for each row, a power of two up to 32. Groups may use
/// group_sum.
template <class F> void each_group(const char* name, Stream& stream, int64_t rows, int lanes, const F& f) {
  if (rows > 0) {
    launch(name, each_group_kernel<F>, blocks_for(rows, kEachThreads / lanes), kEachThreads, 0, stream, f, rows,
           static_cast<unsigned>(lanes));
  }
}

/// f(row, lane) by the 32 lanes of one warp for each row; the rows' warps may use warp operations.
template <class F> void each_warp(const char* name, Stream& stream, int64_t rows, const F& f) {
  each_group(name, stream, rows, 32, f);
}

/// Lanes of a group that has a pack of N elements for each lane where a row is short enough.
template <int N> int lanes_for(int64_t width) {
  int lanes = 1;
  while (lanes < 32 && lanes * N < width) { lanes *= 2; }
  return lanes;
}

/// to = value, or += it: what every gradient does.
template <class T> __device__ __forceinline__ void write(T& to, float value, bool accumulate) {
  to = from_float<T>(accumulate ? to_float(to) + value : value);
}
__device__ __forceinline__ void write(double& to, double value, bool accumulate) {
  to = accumulate ? to + value : value;
}

}  // namespace hebb::HEBB_DEVICE
