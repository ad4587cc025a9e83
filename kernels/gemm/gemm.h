#pragma once
#include "core/stream.h"

namespace hebb {

/// C [m, n] = alpha op(A) op(B) (+ C when accumulate), row-major with leading strides in elements;
/// op transposes when its flag is set: A is [m, k] or, transposed, [k, m]; B is [k, n] or [n, k].
/// All of one dtype, f32 or f64 (CUDA: also bf16 operands with f32 or bf16 C).
struct Gemm {
  Tensor c, a, b;
  int64_t m, n, k;
  int64_t ldc, lda, ldb;
  bool trans_a, trans_b;
  bool accumulate;
  double alpha;
  bool tf32 = false;  // a GPU may round f32 operands to 10 bits of mantissa, whatever allow_tf32 says
};
HEBB_KERNEL(Gemm)

#if defined(HEBB_SIMT) && defined(HEBB_DEVICE)
namespace HEBB_DEVICE {
void allow_tf32(Stream& stream, bool allow);
}
#endif
#ifdef HEBB_HAVE_CUDA
namespace cuda {
void allow_tf32(Stream& stream, bool allow);
}
#endif

/// Whether products of f32 on a GPU stream may round their operands to TF32, which keeps 10 bits of the mantissa (spec
/// 83, section 7). Off at first; other devices have no such products.
inline void allow_tf32([[maybe_unused]] Stream& stream, [[maybe_unused]] bool allow) {
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { cuda::allow_tf32(stream, allow); }
#endif
}

}  // namespace hebb
