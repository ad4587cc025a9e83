#pragma once
#include "core/stream.h"

namespace hebb {

/// to = from, converted between f32 and bf16 (round to nearest even); same number of elements.
/// Bound: memory, 1 read and 1 write.
struct Cast {
  Tensor to, from;
};
HEBB_KERNEL(Cast)

}  // namespace hebb
