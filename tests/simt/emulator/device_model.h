#pragma once
// What the emulated device can do, and how its tensor cores add.
#include <cstdint>

namespace simt {

struct DeviceModel {
  int64_t shared_bytes = 227 * 1024;  // that a block may have: 99 KB on GPUs of 8.6, 8.9 and 12.x
  bool truncates = false;             // sums of tensor cores are those of truncated_sum()
};

/// Of the process. At first those above, but SIMT_SHARED_KB and SIMT_TRUNCATE of the environment count.
DeviceModel device_model();

/// Another device for the duration of a scope, in which all launches must end.
class ScopedDeviceModel {
 public:
  explicit ScopedDeviceModel(DeviceModel model);
  ~ScopedDeviceModel();
  ScopedDeviceModel(const ScopedDeviceModel&) = delete;
  ScopedDeviceModel& operator=(const ScopedDeviceModel&) = delete;

 private:
  DeviceModel previous_;
};

/// sum + sum_l a[l] b[l] as the tensor cores of Hopper are reported to make it: products are exact; all addends are cut
/// off behind 25 bits of the largest exponent and added exactly; the result is rounded toward zero.
float truncated_sum(float sum, const float* a, const float* b, int count);

}  // namespace simt
