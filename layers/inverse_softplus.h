#pragma once
#include <cmath>

namespace hebb {

/// The x with log(1 + e^x) = y, y > 0: a bias that begins as the rate, step size or ridge y. Overflows for no y.
inline double inverse_softplus(double y) { return y + std::log(-std::expm1(-y)); }

}  // namespace hebb
