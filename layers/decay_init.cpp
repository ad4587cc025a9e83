#include "layers/decay_init.h"

#include <algorithm>

namespace hebb {
namespace {

constexpr double kSmallest = 1e-4;  // of a rate or a step size

}  // namespace

Init a_log_init(double low, double high) {
  return [low, high](Rng& rng, float* values, int64_t count) {
    std::generate_n(values, count, [&] {
      return static_cast<float>(std::log(std::max(low + (high - low) * rng.uniform(), kSmallest)));
    });
  };
}

Init dt_bias_init(double low, double high) {
  return [low, high](Rng& rng, float* values, int64_t count) {
    std::generate_n(values, count, [&] {
      const double dt = std::exp(std::log(low) + (std::log(high) - std::log(low)) * rng.uniform());
      return static_cast<float>(inverse_softplus(std::max(dt, kSmallest)));
    });
  };
}

Init uniform_dt_bias_init(double low, double high) {
  return [low, high](Rng& rng, float* values, int64_t count) {
    std::generate_n(values, count, [&] {
      return static_cast<float>(inverse_softplus(std::max(low + (high - low) * rng.uniform(), kSmallest)));
    });
  };
}

}  // namespace hebb
