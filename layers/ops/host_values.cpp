#include "layers/ops/host_values.h"

#include <algorithm>

#include "core/bfloat.h"

namespace hebb {

std::vector<double> host_values(Stream& stream, const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype == DType::bf16) {
    std::vector<bf16> raw(values.size());
    copy_to_host(stream, raw.data(), tensor);
    std::transform(raw.begin(), raw.end(), values.begin(), [](bf16 x) { return static_cast<double>(widened(x)); });
    return values;
  }
  dispatch_real(tensor.dtype, [&](auto zero) {
    std::vector<decltype(zero)> raw(values.size());
    copy_to_host(stream, raw.data(), tensor);
    std::copy(raw.begin(), raw.end(), values.begin());
  });
  return values;
}

}  // namespace hebb
