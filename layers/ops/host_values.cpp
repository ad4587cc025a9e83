#include "layers/ops/host_values.h"

#include <fmt/core.h>

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
  dispatch_real(tensor.dtype, [&]<class S>(S) {
    std::vector<S> raw(values.size());
    copy_to_host(stream, raw.data(), tensor);
    std::copy(raw.begin(), raw.end(), values.begin());
  });
  return values;
}

std::vector<int32_t> host_integers(Stream& stream, const Tensor& tensor) {
  std::vector<int32_t> values(static_cast<size_t>(tensor.numel()));
  copy_to_host(stream, values.data(), tensor);
  return values;
}

Inspector::Record record_of(Stream& stream, const Tensor& tensor, std::vector<int64_t> shape) {
  Inspector::Record r{std::move(shape), {}, {}};
  if (r.shape.empty()) {
    for (int i = 0; i < tensor.shape.rank; ++i) { r.shape.push_back(tensor.size(i)); }
  }
  if (tensor.dtype == DType::i32) {
    const std::vector<int32_t> integers = host_integers(stream, tensor);
    r.integers.assign(integers.begin(), integers.end());
  } else {
    r.reals = host_values(stream, tensor);
  }
  return r;
}

void record(Pass& pass, const std::string& name, const Tensor& tensor, std::vector<int64_t> shape) {
  if (pass.records()) { pass.inspector->records[name] = record_of(pass.stream(), tensor, std::move(shape)); }
}

const std::vector<int64_t>* forced_decisions(const Pass& pass, const std::string& name, int64_t count) {
  const Inspector::Record* forced = pass.inspector != nullptr ? pass.inspector->force(name) : nullptr;
  if (forced == nullptr) { return nullptr; }
  if (static_cast<int64_t>(forced->integers.size()) != count) {
    throw DataError(name, "forced decisions", fmt::format("{:d} integers", forced->integers.size()),
                    std::to_string(count));
  }
  return &forced->integers;
}

bool take_forced(Pass& pass, const Tensor& to, const std::string& name, const char* what, int64_t limit) {
  const std::vector<int64_t>* forced = forced_decisions(pass, name, to.numel());
  if (forced == nullptr) { return false; }
  for (const int64_t v : *forced) {
    if (v < 0 || v >= limit) { throw DataError(name, what, std::to_string(v), fmt::format("0 to {:d}", limit - 1)); }
  }
  copy_to_device(pass.stream(), to, std::vector<int32_t>(forced->begin(), forced->end()).data());
  return true;
}

}  // namespace hebb
