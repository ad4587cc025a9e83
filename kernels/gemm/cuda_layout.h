#pragma once
#include "kernels/gemm/gemm.h"

namespace hebb::HEBB_DEVICE {

/// A matrix as BLAS sees it: element (i, j) of [rows, columns] lies at j * stride + i.
struct ColumnMajor {
  Tensor tensor;
  int64_t rows, columns, stride;
  bool is_transposed;  // the product takes the transpose
};

/// out = left right, column-major, which leaves row-major C = op(A) op(B) in memory. A row-major [r, c] matrix is a
/// column-major [c, r] one, so that C' = op(B)' op(A)' has the operands swapped and nothing transposed in memory.
struct ColumnMajorProduct {
  ColumnMajor left, right, out;
};

inline ColumnMajorProduct column_major(const Gemm& g) {
  return {.left = {g.b, g.trans_b ? g.k : g.n, g.trans_b ? g.n : g.k, g.ldb, g.trans_b},
          .right = {g.a, g.trans_a ? g.m : g.k, g.trans_a ? g.k : g.m, g.lda, g.trans_a},
          .out = {g.c, g.n, g.m, g.ldc, false}};
}

}  // namespace hebb::HEBB_DEVICE
