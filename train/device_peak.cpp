#include "train/device_peak.h"

namespace hebb {

std::optional<double> device_peak(const std::string& device_name, const std::string& precision) {
  struct Peak {
    const char* name;  // part of the device's name; the first that matches holds
    double fp32, tf32, bf16;  // TFLOP/s
  };
  static constexpr Peak kPeaks[] = {
      {"H100 PCIe", 51.2, 378, 756}, {"H100 NVL", 60, 417.5, 835},  {"H100", 66.9, 494.7, 989.4},
      {"H200 NVL", 60, 417.5, 835},  {"H200", 66.9, 494.7, 989.4}, {"A100", 19.5, 156, 312},
  };
  for (const Peak& peak : kPeaks) {
    if (device_name.find(peak.name) != std::string::npos) {
      return 1e12 * (precision == "bf16" ? peak.bf16 : precision == "tf32" ? peak.tf32 : peak.fp32);
    }
  }
  return std::nullopt;
}

}  // namespace hebb
