#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// to [rows, columns] = or += the sum of `slices` matrices, in order; `stride` elements from matrix to matrix,
/// `row_stride` from row to row. Items of each_element are the matrix's. Bound: HBM, the slices once.
template <class S> struct AddSlices {
  S* to;
  const S* in;
  int64_t slices, stride, row_stride, columns;
  bool accumulate;

  __device__ void operator()(int64_t row, int64_t column) const {
    S sum = 0;
    for (int64_t s = 0; s < slices; ++s) { sum += in[s * stride + row * row_stride + column]; }
    write(to[row * columns + column], sum, accumulate);
  }
};

}  // namespace hebb::HEBB_DEVICE
