#pragma once
#include <string_view>

#include "kernels/common/vector_unit.h"

namespace hebb {

/// Roundings of a multiply-add in CPU kernels: two where the instruction set has no fused one. Tolerances of sums that
/// nearly cancel grow with them.
inline int roundings() { return std::string_view(vector_unit()) == "baseline" ? 2 : 1; }

}  // namespace hebb
