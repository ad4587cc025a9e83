#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// Matrix whose rows lie `stride` elements apart, fp32 or bf16.
struct Rows2D {
  const void* data;
  DType dtype;
  int64_t rows, stride, columns;
};

/// out[column * step] += sum over the rows of `in`, in an order that depends on the shape alone. Uses the stream's
/// workspace. Bound: HBM, `in` once.
void add_column_sums(Stream& stream, float* out, int64_t step, const Rows2D& in);

/// The usual case: the second stage of a sum over blocks, partial [blocks, columns]. out undefined: not wanted.
void add_column_sums(Stream& stream, const Tensor& out, const Tensor& partial, int64_t blocks);
/// The same with `stride` elements from block to block.
void add_column_sums(Stream& stream, const Tensor& out, const float* partial, int64_t blocks, int64_t stride);

}  // namespace hebb::HEBB_DEVICE
