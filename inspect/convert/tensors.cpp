#include "inspect/convert/tensors.h"

#include <algorithm>

#include "core/bfloat.h"

namespace hebb {

void Tensors::add(const std::string& name, const Shape& shape, const SafetensorsFile& file, const std::string& from) {
  const SafetensorsFile::Entry& entry = file.at(from);
  const bool stays = entry.dtype == DType::i32 || (dtype_.empty() && entry.dtype != DType::u8);
  const DType dtype = stays ? entry.dtype : dtype_ == "bf16" ? DType::bf16 : DType::f32;
  if (dtype == entry.dtype) {
    list.push_back({name, {const_cast<uint8_t*>(file.data(entry)), dtype, shape}});  // only read
    return;
  }
  const std::vector<double> values = file.doubles(from);
  const size_t count = values.size();
  std::unique_ptr<char[]> memory(new char[count * static_cast<size_t>(dtype_bytes(dtype))]);
  if (dtype == DType::bf16) {
    std::transform(values.begin(), values.end(), reinterpret_cast<bf16*>(memory.get()),
                   [](double x) { return nearest_bf16(static_cast<float>(x)); });
  } else {
    std::transform(values.begin(), values.end(), reinterpret_cast<float*>(memory.get()),
                   [](double x) { return static_cast<float>(x); });
  }
  list.push_back({name, {memory.get(), dtype, shape}});
  memory_.push_back(std::move(memory));
}

std::string Tensors::torch_dtype() const {
  const DType dtype = list.empty() ? DType::f32 : list.front().tensor.dtype;
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f64 ? "float64" : "float32";
}

}  // namespace hebb
