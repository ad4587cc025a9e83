#pragma once
#include <vector>

#include "layers/layer.h"

namespace hebb {

/// A floating-point tensor as doubles on the host; zeros on the counting device.
std::vector<double> host_values(Stream& stream, const Tensor& tensor);

/// A tensor as `--inside` and statistics take it; `shape` replaces its own where given.
Inspector::Record record_of(Stream& stream, const Tensor& tensor, std::vector<int64_t> shape = {});

}  // namespace hebb
