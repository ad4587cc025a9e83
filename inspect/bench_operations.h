#pragma once
#include <string>
#include <vector>

#include "train/choose_device.h"

namespace hebb {

/// Speed of one operation, forward or backward, beside its bound: the larger of FLOPs at the best matrix product of the
/// same run and bytes at the copy bandwidth of the same run.
struct OperationSpeed {
  std::string name;
  double ms = 0, flops = 0, bytes = 0;
  double bound_ms = 0;
  bool memory_bound = false;
  int64_t launches = 0;  // of a step; 0: measured by itself

  double share() const { return bound_ms / ms; }
  double tflops() const { return flops / ms * 1e-9; }
  double gb_per_s() const { return bytes / ms * 1e-6; }
};

struct OperationSpeeds {
  double copy_gb_per_s = 0;  // reads and writes of a copy on the device
  double best_tflops = 0;    // of the products below
  std::vector<OperationSpeed> products, operations;
  std::vector<std::string> plain_cores;  // as in Plan
};

/// What bounds are taken from: the copy and the products alone.
OperationSpeeds measure_bounds(const Compute& compute, int64_t tokens, double seconds);
/// Measures matrix products, norms, activations, attention, the gated delta rule, cross-entropy and AdamW with `tokens`
/// tokens on the device, in fp32 or bf16, spending about `seconds` on each. The best repetition counts.
OperationSpeeds measure_operations(const Compute& compute, int64_t tokens, double seconds);

}  // namespace hebb
