#pragma once
#include <vector>

#include "core/stream.h"

namespace hebb {

/// A floating-point tensor as doubles on the host; zeros on the counting device.
std::vector<double> host_values(Stream& stream, const Tensor& tensor);

}  // namespace hebb
