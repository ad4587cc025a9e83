#pragma once
#include <cstring>

#include "core/tensor.h"

namespace hebb {

inline float widened(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Round to nearest even; every NaN becomes 0x7FFF, as on the device.
inline bf16 nearest_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<uint16_t>(is_nan ? 0x7FFFu : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
}

}  // namespace hebb
