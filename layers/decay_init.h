#pragma once
#include <cmath>

#include "core/params.h"

namespace hebb {

/// The x with log(1 + e^x) = y, y > 0: a bias that begins as the rate, step size or ridge y. Overflows for no y.
inline double inverse_softplus(double y) { return y + std::log(-std::expm1(-y)); }

/// Initial values of A_log, the logarithm of a decay's rate: log(max(U(low, high), 1e-4)).
Init a_log_init(double low, double high);

/// Initial values of dt_bias, the inverse softplus of a step size: of max(exp(U(ln low, ln high)), 1e-4).
Init dt_bias_init(double low, double high);
/// The same of max(U(low, high), 1e-4).
Init uniform_dt_bias_init(double low, double high);

}  // namespace hebb
