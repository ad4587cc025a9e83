#include "core/tensor.h"

#include <fmt/core.h>

#include <stdexcept>

namespace hebb {

const char* dtype_name(DType t) {
  switch (t) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::bf16: return "BF16";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::u8: return "U8";
  }
  return "?";
}

void wrong_dtype(const Tensor& found, DType expected) {
  throw std::logic_error("a tensor " + found.shape.str() + " of " + dtype_name(found.dtype) + " was read as " +
                         dtype_name(expected));
}

std::string Shape::str() const {
  std::string s = "[";
  for (int i = 0; i < rank; ++i) { s += fmt::format("{}{:d}", i ? ", " : "", dims[i]); }
  return s + "]";
}

}  // namespace hebb
