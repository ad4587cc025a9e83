#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/tensor.h"

namespace hebb_test {

inline float value_of(float x) { return x; }
inline double value_of(double x) { return x; }
inline float value_of(hebb::bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Nearest value of T, by search among the neighbours rather than by the kernels' bit operations.
template <class T> T rounded(float x) {
  if constexpr (std::is_same_v<T, hebb::bf16>) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const hebb::bf16 below{static_cast<uint16_t>(bits >> 16)}, above{static_cast<uint16_t>((bits >> 16) + 1)};
    const double low = std::fabs(double(x) - value_of(below)), high = std::fabs(double(value_of(above)) - x);
    return low < high || (low == high && below.bits % 2 == 0) ? below : above;
  } else {
    return x;
  }
}

/// Reproducible numbers in (-1, 1).
class Numbers {
 public:
  explicit Numbers(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  double next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_ / 2147483648.0 - 1.0;
  }
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>((next() + 1) / 2 * limit) % limit; }

 private:
  uint32_t state_;
};

template <class T> std::vector<T> random_values(int64_t count, uint32_t seed, double scale = 1) {
  Numbers numbers(seed);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) { values.push_back(rounded<T>(static_cast<float>(scale * numbers.next()))); }
  return values;
}

template <class T> std::vector<double> as_double(const std::vector<T>& values) {
  std::vector<double> out;
  for (const T& x : values) { out.push_back(static_cast<double>(value_of(x))); }
  return out;
}

}  // namespace hebb_test
