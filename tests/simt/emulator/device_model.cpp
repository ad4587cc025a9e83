// The emulated device and sums of its tensor cores, cut off as on Hopper.
#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdlib>

#include "device_model.h"

namespace simt {
namespace {

constexpr int kFraction = 25;  // bits behind the point of the largest addend: two more than fp32 has
constexpr int kMostTerms = 16;

int exponent(float x) {
  const int biased = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 255);
  return std::max(biased, 1) - 127;
}

double power_of_2(int exponent) { return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }

float rounded_toward_zero(double value) {
  const auto nearest = static_cast<float>(value);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? std::nextafterf(nearest, 0.0f) : nearest;
}

DeviceModel initial_model() {
  DeviceModel model;
  if (const char* kilobytes = std::getenv("SIMT_SHARED_KB")) { model.shared_bytes = 1024 * std::atoll(kilobytes); }
  if (const char* truncates = std::getenv("SIMT_TRUNCATE")) { model.truncates = std::atoi(truncates) != 0; }
  return model;
}

DeviceModel current = initial_model();

}  // namespace

DeviceModel device_model() { return current; }

ScopedDeviceModel::ScopedDeviceModel(DeviceModel model) : previous_(current) { current = model; }
ScopedDeviceModel::~ScopedDeviceModel() { current = previous_; }

float truncated_sum(float sum, const float* a, const float* b, int count) {
  double products[kMostTerms], plain = sum;
  int top = sum != 0 ? exponent(sum) : INT_MIN;
  for (int l = 0; l < count; ++l) {
    products[l] = static_cast<double>(a[l]) * static_cast<double>(b[l]);
    plain += products[l];
    if (products[l] != 0) { top = std::max(top, exponent(a[l]) + exponent(b[l])); }
  }
  if (top == INT_MIN || !std::isfinite(plain)) { return static_cast<float>(plain); }
  const double scale = power_of_2(kFraction - top);
  auto total = static_cast<int64_t>(static_cast<double>(sum) * scale);  // a cast cuts off
  for (int l = 0; l < count; ++l) { total += static_cast<int64_t>(products[l] * scale); }
  return rounded_toward_zero(static_cast<double>(total) * power_of_2(top - kFraction));
}

}  // namespace simt
