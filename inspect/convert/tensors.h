#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"

namespace hebb {

/// Tensors of a conversion: bytes of the source where the type stays, else values of their own.
class Tensors {
 public:
  explicit Tensors(std::string dtype) : dtype_(std::move(dtype)) {}

  void add(const std::string& name, const Shape& shape, const SafetensorsFile& file, const std::string& from);
  /// "float32" of most of them, as config.json of Hugging Face says it.
  std::string torch_dtype() const;

  std::vector<NamedTensor> list;

 private:
  std::string dtype_;
  std::vector<std::unique_ptr<char[]>> memory_;
};

}  // namespace hebb
