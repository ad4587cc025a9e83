#include "kernels/common/cuda/column_sums.cuh"

#include <algorithm>

#include "kernels/bias/bias.h"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kColumns = 32, kGroups = 8;
constexpr int64_t kSliceRows = 256;

// Block: 32 columns x 8 groups of rows; grid: columns, slices of rows. Slice s writes to out[s * out_stride + column *
// step], or adds to it. HBM: reads x.
template <class T>
__global__ void __launch_bounds__(kColumns* kGroups)
    column_sums_kernel(float* out, int64_t out_stride, int64_t step, const T* x, int64_t rows, int64_t stride,
                       int64_t columns, int64_t slice_rows, bool accumulate) {
  HEBB_SHARED(float[kGroups][kColumns], sums);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * slice_rows;
  const int64_t last = first + slice_rows < rows ? first + slice_rows : rows;
  float sum = 0;
  if (column < columns) {
    for (int64_t row = first + threadIdx.y; row < last; row += kGroups) { sum += to_float(x[row * stride + column]); }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    float total = 0;
    HEBB_UNROLL
    for (int group = 0; group < kGroups; ++group) { total += sums[group][threadIdx.x]; }
    write(out[blockIdx.y * out_stride + column * step], total, accumulate);
  }
}

}  // namespace

void add_column_sums(Stream& stream, float* out, int64_t step, const Rows2D& in) {
  if (in.columns == 0 || in.rows == 0) { return; }
  const unsigned tiles = blocks_for(in.columns, kColumns);
  const dim3 threads(kColumns, kGroups);
  const StreamScratch scratch = stream_scratch(stream);
  const int64_t room = scratch.bytes / (in.columns * static_cast<int64_t>(sizeof(float)));
  const int64_t slices = std::clamp<int64_t>(in.rows / kSliceRows, 1, std::clamp<int64_t>(room, 1, 64));
  const int64_t slice_rows = (in.rows + slices - 1) / slices;
  dispatch_float(in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(in.data);
    if (slices == 1) {
      HEBB_LAUNCH(column_sums_kernel<T>, tiles, threads, 0, stream, out, int64_t{0}, step, x, in.rows, in.stride,
                  in.columns, in.rows, true);
      return;
    }
    float* const parts = static_cast<float*>(scratch.data);
    HEBB_LAUNCH(column_sums_kernel<T>, dim3(tiles, static_cast<unsigned>(slices)), threads, 0, stream, parts,
                in.columns, int64_t{1}, x, in.rows, in.stride, in.columns, slice_rows, false);
    HEBB_LAUNCH(column_sums_kernel<float>, tiles, threads, 0, stream, out, int64_t{0}, step, parts, slices, in.columns,
                in.columns, slices, true);
  });
}

void add_column_sums(Stream& stream, const Tensor& out, const Tensor& partial, int64_t blocks) {
  if (out.defined()) {
    add_column_sums(stream, out.as<float>(), 1, {partial.data, partial.dtype, blocks, out.numel(), out.numel()});
  }
}

void run(Stream& stream, const ColumnSums& a) { add_column_sums(stream, a.out, a.x, a.x.numel() / a.out.numel()); }

}  // namespace hebb::HEBB_DEVICE
