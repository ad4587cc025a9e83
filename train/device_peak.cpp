#include "train/device_peak.h"

#include "core/error.h"
#ifdef HEBB_HAVE_CUDA
#include "core/cuda_device.h"
#endif

namespace hebb {

std::optional<double> device_peak(const std::string& device_name, const std::string& precision) {
  struct Peak {
    const char* name;         // part of the device's name; the first that matches holds
    double fp32, tf32, bf16;  // TFLOP/s
  };
  static constexpr Peak kPeaks[] = {
      {"H100 PCIe", 51.2, 378, 756}, {"H100 NVL", 60, 417.5, 835}, {"H100", 66.9, 494.7, 989.4},
      {"H200 NVL", 60, 417.5, 835},  {"H200", 66.9, 494.7, 989.4}, {"A100", 19.5, 156, 312},
  };
  for (const Peak& peak : kPeaks) {
    if (device_name.find(peak.name) != std::string::npos) {
      return 1e12 * (precision == "bf16" ? peak.bf16 : precision == "tf32" ? peak.tf32 : peak.fp32);
    }
  }
  return std::nullopt;
}

const PlannedGpu& planned_gpu(const std::string& key) {
  static constexpr PlannedGpu kGpus[] = {
      {"h100", "H100", 78, 227 * 1024}, {"h200", "H200", 139, 227 * 1024}, {"a100", "A100", 78, 163 * 1024}};
  std::string known;
  for (const PlannedGpu& gpu : kGpus) {
    if (key == gpu.key) { return gpu; }
    known += (known.empty() ? "" : ", ") + std::string(gpu.key);
  }
  throw ConfigError("--gpu", '"' + key + '"', "one of " + known);
}

std::string machine_name(DeviceKind device) {
#ifdef HEBB_HAVE_CUDA
  if (device == DeviceKind::cuda) { return cuda::device_info().name; }
#endif
  return device_name(device);
}

std::optional<double> device_peak(const Compute& compute, bool allow_tf32) {
  const std::string precision = allow_tf32 && compute.dtype == DType::f32 ? "tf32" : precision_name(compute.dtype);
  return compute.device == DeviceKind::cuda ? device_peak(machine_name(compute.device), precision) : std::nullopt;
}

}  // namespace hebb
