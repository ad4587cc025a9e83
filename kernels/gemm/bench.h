#pragma once
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace hebb::cpu {

struct GemmShape {
  bool trans_a, trans_b;
  int64_t m, n, k;
};

struct GemmRate {
  GemmShape shape;
  int threads;
  double gflops;       // 2 m n k / time, best repetition
  double peak_gflops;  // multiply-adds on registers alone, on as many threads, measured beside it
};

/// Rates of gemm_parallel on the current threads for f32 or f64, spending about `seconds` on each shape.
std::vector<GemmRate> measure_gemm(DType dtype, const std::vector<GemmShape>& shapes, double seconds);

}  // namespace hebb::cpu
