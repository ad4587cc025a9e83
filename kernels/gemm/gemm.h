#pragma once
#include "core/kernel.h"

namespace hebb {

/// C [m, n] = alpha op(A) op(B) (+ C when accumulate), row-major with leading strides in elements, by default without
/// gaps; op transposes when its flag is set: A is [m, k] or, transposed, [k, m]; B is [k, n] or [n, k]. All of one
/// dtype, f32 or f64 (CUDA: also bf16 operands with f32 or bf16 C).
struct Gemm {
  Tensor c, a, b;
  int64_t m, n, k;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;
  int64_t ldc = n, lda = trans_a ? m : k, ldb = trans_b ? k : n;
  double alpha = 1;
  bool tf32 = false;  // a GPU may round f32 operands to 10 bits of mantissa, whatever the stream allows
};
/// Adds it to the list of the stream, if there is one.
void count(Stream& stream, const Gemm& product);
/// "product NT 2048 x 768 x 256", m x n x k.
LaunchWork work_of(const Gemm& product);
HEBB_KERNEL(Gemm)

}  // namespace hebb
