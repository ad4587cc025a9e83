#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "core/error.h"

namespace hebb {

enum class DType : uint8_t { f32, f64, bf16, i32, i64, u8 };

constexpr int64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}
/// Type of statistics, sums and states beside activations of type t: fp32 for bf16.
constexpr DType sum_dtype(DType t) { return t == DType::bf16 ? DType::f32 : t; }
const char* dtype_name(DType t);  // "F32", "F64", "BF16", "I32", "I64", "U8", as in safetensors

namespace detail {
template <class T> struct DTypeOf;  // no definition: tensors have no elements of other types
template <> struct DTypeOf<float> { static constexpr DType value = DType::f32; };
template <> struct DTypeOf<double> { static constexpr DType value = DType::f64; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = DType::i32; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = DType::i64; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = DType::u8; };
}  // namespace detail
template <class T> inline constexpr DType dtype_of = detail::DTypeOf<std::remove_const_t<T>>::value;

/// Up to five dimensions, outermost first.
struct Shape {
  std::array<int64_t, 5> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    HEBB_ASSERT(list.size() <= dims.size());
    for (int64_t d : list) { dims[rank++] = d; }
  }
  int64_t operator[](int i) const { return dims[i < 0 ? rank + i : i]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) { n *= dims[i]; }
    return n;
  }
  bool operator==(const Shape&) const = default;
  std::string str() const;  // "[2, 3]"
};

struct Tensor;
/// Programmer error: the message names shape and both types.
[[noreturn]] void wrong_dtype(const Tensor& found, DType expected);

/// A view of contiguous memory on the device of the stream it is used with; owns nothing.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  bool defined() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * dtype_bytes(dtype); }
  int64_t size(int i) const { return shape[i]; }
  template <class T> T* as() const {
    if (dtype != dtype_of<T> && data != nullptr) { wrong_dtype(*this, dtype_of<T>); }
    return static_cast<T*>(data);
  }
  /// Same memory, other shape with the same number of elements.
  Tensor view(Shape s) const {
    HEBB_ASSERT(s.numel() == numel());
    return {data, dtype, s};
  }
  /// Elements [begin, begin + s.numel()) of the flat memory, shaped s.
  Tensor slice(int64_t begin, Shape s) const {
    HEBB_ASSERT(begin >= 0 && begin + s.numel() <= numel());
    return {static_cast<char*>(data) + begin * dtype_bytes(dtype), dtype, s};
  }
};

/// bfloat16: the upper half of an fp32; arithmetic happens in fp32.
struct bf16 {
  uint16_t bits;
};
template <> struct detail::DTypeOf<bf16> { static constexpr DType value = DType::bf16; };

}  // namespace hebb
