#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "train/choose_device.h"

namespace hebb {

/// Dense peak in FLOP/s of a device by its name, for "fp32", "tf32" or "bf16"; nothing for devices that
/// are not in the table. Source: the vendor's data sheets, without sparsity.
std::optional<double> device_peak(const std::string& device_name, const std::string& precision);

/// A GPU that plans can name without having it.
struct PlannedGpu {
  const char* key;        // as users write it
  const char* name;       // part of the device's name, as for device_peak
  double memory_gib;      // that a process can take: estimate, the data sheet's less the context of CUDA
  int64_t shared_memory;  // of a block [bytes]
};
/// Errors: ConfigError naming the known ones.
const PlannedGpu& planned_gpu(const std::string& key);

/// The name of the device that this process computes on: a GPU's product name, or "cpu".
std::string machine_name(DeviceKind device);
/// That device's peak; nothing on the CPU.
std::optional<double> device_peak(const Compute& compute, bool allow_tf32);

}  // namespace hebb
