#pragma once
#include <cstdint>

namespace hebb::cpu {

/// C [m, n] = alpha op(A) op(B) (+ C when accumulate) on the calling thread; row-major with leading
/// strides in elements; op transposes: A is [m, k] or, with trans_a, [k, m]; B is [k, n] or [n, k].
/// C overlaps neither A nor B. S is float or double.
///
/// Every element of C is one chain of multiply-adds over k per block of k, whose length depends on k
/// alone: the same bits come out whatever rows and columns one call computes, on any number of threads.
template <class S>
void gemm_serial(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, S alpha, const S* a, int64_t lda,
                 const S* b, int64_t ldb, bool accumulate, S* c, int64_t ldc);

/// The same on the thread pool: threads take tiles of C.
template <class S>
void gemm_parallel(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, S alpha, const S* a, int64_t lda,
                   const S* b, int64_t ldb, bool accumulate, S* c, int64_t ldc);

}  // namespace hebb::cpu
