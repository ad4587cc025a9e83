#pragma once
#include <optional>
#include <string>

namespace hebb {

/// Dense peak in FLOP/s of a device by its name, for "fp32", "tf32" or "bf16"; nothing for devices that
/// are not in the table. Source: the vendor's data sheets, without sparsity.
std::optional<double> device_peak(const std::string& device_name, const std::string& precision);

}  // namespace hebb
