#pragma once
#include <memory>
#include <vector>

#include "core/members.h"
#include "core/tensor.h"

namespace hebb {

/// fp32 copies of an operation's bf16 operands: kernels of the CPU compute in fp32 and fp64. Tensors of the same memory
/// share a copy, so that an operation in place stays in place.
class Fp32Operands {
 public:
  /// A bf16 tensor that outlives this object; other dtypes stay as they are.
  void add(Tensor& tensor);
  /// Points the tensors at fp32 copies of their values; counting: they only get the dtype.
  void widen(bool counting);
  /// Writes the copies back, rounded to nearest even: what nobody wrote keeps its bits.
  void narrow() const;

 private:
  struct Copy {
    Tensor narrow, wide;
    std::unique_ptr<float[]> memory;
  };
  std::vector<Tensor*> tensors_;
  std::vector<Copy> copies_;
};

/// Calls f with each Tensor and each DType of an operation's args.
template <class T, class F> void for_each_operand(T& object, F&& f) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, Tensor> || std::is_same_v<Plain, DType>) {
    f(object);
  } else if constexpr (std::is_class_v<Plain> && std::is_aggregate_v<Plain>) {
    for_each_member(object, [&f](auto& member) { for_each_operand(member, f); });
  }
}

/// Calls run with args, or with args that hold fp32 copies in the place of bf16 tensors and fp32 in the place of bf16
/// dtypes, and writes the copies back.
template <class Args, class Run> void with_fp32_operands(const Args& args, bool counting, Run&& run) {
  struct {
    bool found = false;
    void operator()(const Tensor& tensor) { found |= tensor.dtype == DType::bf16; }
    void operator()(DType dtype) { found |= dtype == DType::bf16; }
  } narrow;
  for_each_operand(args, narrow);
  if (!narrow.found) {
    run(args);
    return;
  }
  struct {
    Fp32Operands operands{};
    void operator()(Tensor& tensor) { operands.add(tensor); }
    void operator()(DType& dtype) { dtype = dtype == DType::bf16 ? DType::f32 : dtype; }
  } wide;
  Args copy = args;
  for_each_operand(copy, wide);
  wide.operands.widen(counting);
  run(std::as_const(copy));
  wide.operands.narrow();
}

}  // namespace hebb
