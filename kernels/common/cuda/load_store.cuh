#pragma once
#include "kernels/common/cuda/prelude.cuh"

namespace hebb::HEBB_DEVICE {

/// Elements of a tensor in fp32 or bf16, known at run time: for small kernels whose time is latency, so that there is
/// one of each.
class Elements {
 public:
  Elements() = default;
  explicit Elements(const Tensor& t) : data_(t.data), is_bf16_(t.dtype == DType::bf16) {
    HEBB_ASSERT(is_bf16_ || t.dtype == DType::f32);
  }

  __device__ bool exist() const { return data_ != nullptr; }
  __device__ float operator[](int64_t i) const {
    return is_bf16_ ? to_float(static_cast<const bf16*>(data_)[i]) : static_cast<const float*>(data_)[i];
  }
  __device__ void set(int64_t i, float value) const {
    if (is_bf16_) {
      static_cast<bf16*>(data_)[i] = round_to_bf16(value);
    } else {
      static_cast<float*>(data_)[i] = value;
    }
  }

 private:
  void* data_ = nullptr;
  bool is_bf16_ = false;
};

}  // namespace hebb::HEBB_DEVICE
