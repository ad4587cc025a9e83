#include "kernels/common/cuda/column_sums.cuh"

#include <algorithm>

#include "kernels/bias/bias.h"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kColumns = 32, kGroups = 8;
constexpr int kBf16Columns = 4;  // of a lane: 8 bytes
constexpr int64_t kSliceRows = 256;

// Block: 32 packs of N columns x 8 groups of rows; grid: columns, slices of rows. Slice s writes to out[s * out_stride
// + column * step], or adds to it. HBM: reads x.
template <class T, int N>
__global__ void __launch_bounds__(kColumns* kGroups)
    column_sums_kernel(float* out, int64_t out_stride, int64_t step, const T* x, int64_t rows, int64_t stride,
                       int64_t columns, int64_t slice_rows, bool accumulate) {
  HEBB_SHARED(float[kGroups][kColumns * N], sums);
  const int own = static_cast<int>(threadIdx.x) * N;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns * N + own;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * slice_rows;
  const int64_t last = first + slice_rows < rows ? first + slice_rows : rows;
  float sum[N] = {};
  if (column < columns) {
    for (int64_t row = first + threadIdx.y; row < last; row += kGroups) {
      float value[N];
      load_pack(value, x + row * stride, column, columns, N > 1);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { sum[j] += value[j]; }
    }
  }
  HEBB_UNROLL
  for (int j = 0; j < N; ++j) { sums[threadIdx.y][own + j] = sum[j]; }
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      float total = 0;
      HEBB_UNROLL
      for (int group = 0; group < kGroups; ++group) { total += sums[group][own + j]; }
      write(out[blockIdx.y * out_stride + (column + j) * step], total, accumulate);
    }
  }
}

}  // namespace

void add_column_sums(Stream& stream, float* out, int64_t step, const Rows2D& in) {
  if (in.columns == 0 || in.rows == 0) { return; }
  const dim3 threads(kColumns, kGroups);
  const StreamScratch scratch = stream_scratch(stream);
  const int64_t room = scratch.bytes / (in.columns * static_cast<int64_t>(sizeof(float)));
  const int64_t slices = std::clamp<int64_t>(in.rows / kSliceRows, 1, std::clamp<int64_t>(room, 1, 64));
  const int64_t slice_rows = (in.rows + slices - 1) / slices;
  float* const parts = static_cast<float*>(scratch.data);
  const auto sum_slices = [&]<class T>(T, auto pack) {
    const unsigned tiles = blocks_for(in.columns, kColumns * pack());
    const bool is_last = slices == 1;
    HEBB_LAUNCH((column_sums_kernel<T, pack()>), dim3(tiles, static_cast<unsigned>(slices)), threads, 0, stream,
                is_last ? out : parts, is_last ? 0 : in.columns, is_last ? step : 1, static_cast<const T*>(in.data),
                in.rows, in.stride, in.columns, slice_rows, is_last);
  };
  if (in.dtype != DType::bf16) {
    HEBB_ASSERT(in.dtype == DType::f32);
    sum_slices(float{}, std::integral_constant<int, 1>{});
  } else if (can_vectorise<kBf16Columns>(in.columns, in.data) && in.stride % kBf16Columns == 0) {
    sum_slices(bf16{}, std::integral_constant<int, kBf16Columns>{});
  } else {
    sum_slices(bf16{}, std::integral_constant<int, 1>{});
  }
  if (slices > 1) {
    HEBB_LAUNCH((column_sums_kernel<float, 1>), blocks_for(in.columns, kColumns), threads, 0, stream, out, int64_t{0},
                step, parts, slices, in.columns, in.columns, slices, true);
  }
}

void add_column_sums(Stream& stream, const Tensor& out, const Tensor& partial, int64_t blocks) {
  if (out.defined()) {
    add_column_sums(stream, out.as<float>(), 1, {partial.data, partial.dtype, blocks, out.numel(), out.numel()});
  }
}

void add_column_sums(Stream& stream, const Tensor& out, const float* partial, int64_t blocks, int64_t stride) {
  if (out.defined()) {
    add_column_sums(stream, out.as<float>(), 1, {partial, DType::f32, blocks, stride, out.numel()});
  }
}

void run(Stream& stream, const ColumnSums& a) { add_column_sums(stream, a.out, a.x, a.x.numel() / a.out.numel()); }

}  // namespace hebb::HEBB_DEVICE
