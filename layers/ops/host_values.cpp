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

Inspector::Record record_of(Stream& stream, const Tensor& tensor, std::vector<int64_t> shape) {
  Inspector::Record r{std::move(shape), {}, {}};
  if (r.shape.empty()) {
    for (int i = 0; i < tensor.shape.rank; ++i) { r.shape.push_back(tensor.size(i)); }
  }
  if (tensor.dtype == DType::i32) {
    std::vector<int32_t> raw(static_cast<size_t>(tensor.numel()));
    copy_to_host(stream, raw.data(), tensor);
    r.integers.assign(raw.begin(), raw.end());
  } else {
    r.reals = host_values(stream, tensor);
  }
  return r;
}

}  // namespace hebb
