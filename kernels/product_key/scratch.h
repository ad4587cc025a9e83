#pragma once
#include "kernels/product_key/product_key.h"

namespace hebb {

struct ProductKeyBackwardScratch {
  Tensor d_sums;  // [N, H, k]: gradients of the scores of the chosen slots
};

}  // namespace hebb
