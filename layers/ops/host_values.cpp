#include "layers/ops/host_values.h"

#include <algorithm>

namespace hebb {

std::vector<double> host_values(Stream& stream, const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  dispatch_real(tensor.dtype, [&](auto zero) {
    std::vector<decltype(zero)> raw(values.size());
    copy_to_host(stream, raw.data(), tensor);
    std::copy(raw.begin(), raw.end(), values.begin());
  });
  return values;
}

}  // namespace hebb
