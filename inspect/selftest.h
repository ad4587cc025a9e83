#pragma once
#include <string>
#include <vector>

#include "inspect/trace.h"
#include "train/choose_device.h"

namespace hebb {

/// What may differ between a device and fp64 on the CPU.
struct SelftestLimits {
  double outputs;    // logits, loss, decoding: largest difference over the largest entry
  double gradients;  // of a tensor: rms of the difference over its rms
  double zeros;      // smallest rms that counts there, of the largest rms: what is below has cancelled
};

/// fp32: 1e-4 and 1e-3, the rounding of sums over some hundred terms with room; bf16: 2e-2 and 5e-2, eight bits of
/// mantissa. zeros: 1e-3; in bf16 2^-9, the rounding of one term.
SelftestLimits selftest_limits(DType dtype);

/// One model on a device against the same weights in fp64 on the CPU. Discrete decisions of layers are taken from fp64.
struct SelftestResult {
  std::string name;
  double logits = 0, loss = 0;  // relative differences
  double gradients = 0;         // of the worst tensor
  double decoding = -1;         // prefill and steps with carried state; -1: not compared
  double seconds = 0;           // on the device
  std::string failure{};        // empty: passed
};

/// A small model for every type of layer, named after it, and "optimizer".
std::vector<std::string> selftest_names();

/// Runs one of them: documents of odd lengths, forward, backward, the same once more (which must give the same bits),
/// prefill and single tokens. Errors of the device become `failure`. Decoding is compared in fp32 only: in bf16 routes
/// may differ, and nothing forces them there.
SelftestResult selftest(const std::string& name, const Compute& compute);

/// The relative differences of `device` from `reference`, and what exceeds the limits.
SelftestResult judge(const std::string& name, const TraceOutput& device, const TraceOutput& reference,
                     const SelftestLimits& limits);

}  // namespace hebb
