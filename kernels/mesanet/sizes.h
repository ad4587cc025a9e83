#pragma once
#include "core/tensor.h"

namespace hebb {

struct MesanetSizes {
  int64_t batch, length, heads, key_dim, value_dim;

  MesanetSizes(const Tensor& k, const Tensor& v)
      : batch(k.size(0)), length(k.size(1)), heads(k.size(2)), key_dim(k.size(3)), value_dim(v.size(3)) {}
  /// Of one head of one token, for counting scratch.
  MesanetSizes(int64_t dk, int64_t dv) : batch(1), length(1), heads(1), key_dim(dk), value_dim(dv) {}
  constexpr int64_t keys() const { return key_dim * key_dim; }
  constexpr int64_t values() const { return key_dim * value_dim; }
};

}  // namespace hebb
