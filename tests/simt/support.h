#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda_device.h"
#include "device_model.h"
#include "host.h"
#include "kernels/activation/activation.h"
#include "kernels/adamw/adamw.h"
#include "kernels/add/add.h"
#include "kernels/attention/scratch.h"
#include "kernels/common/cores.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/norm/scratch.h"
#include "tests/op_cases/element_values.h"
#include "tests/test.h"

namespace hebb_test {

namespace device = hebb::HEBB_DEVICE;

/// The message of the fault that f() raises; empty if none.
template <class F> std::string fault_of(F&& f) {
  try {
    f();
    simt::synchronize_all();
  } catch (const simt::Fault& fault) { return fault.what(); }
  return "";
}

/// An array on the emulated device, with guard zones, NaN unless given values.
template <class T> class DeviceArray {
 public:
  explicit DeviceArray(int64_t count)
      : count_(count), data_(static_cast<T*>(simt::allocate(count * int64_t(sizeof(T))))) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(static_cast<int64_t>(values.size())) {
    std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  ~DeviceArray() {
    CHECK(fault_of([this] { simt::release(data_); }).empty());
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  hebb::Tensor tensor(hebb::Shape shape) const { return {data_, hebb::dtype_of<T>, shape}; }
  hebb::Tensor tensor() const { return tensor({count_}); }
  std::vector<T> host() const {
    simt::check_guards();  // waits for all streams, too
    return {data_, data_ + count_};
  }
  std::vector<double> values() const {
    std::vector<double> out;
    for (const T& x : host()) { out.push_back(static_cast<double>(value_of(x))); }
    return out;
  }

 private:
  int64_t count_;
  T* data_;
};

/// ||a - b|| / ||b||; NaN anywhere gives NaN, which no comparison accepts.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

/// One rounding of each result, and in fp32 sums of a few hundred terms.
template <class T> constexpr double kTolerance = std::is_same_v<T, float> ? 2e-6 : 4e-3;

/// A stream of the emulated device.
class TestStream {
 public:
  TestStream() : stream_(device::create_stream()) {}
  ~TestStream() { device::destroy_stream(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator hebb::Stream&() { return stream_; }

 private:
  hebb::Stream stream_;
};

/// Scratch on the emulated device: each tensor has guard zones and holds NaN.
class GuardedWorkspace : public hebb::Workspace {
 public:
  explicit GuardedWorkspace(hebb::Stream& stream) : Workspace(stream) {}
  hebb::Tensor tensor(hebb::Shape shape, hebb::DType dtype, std::string_view) override {
    arrays_.push_back(std::make_unique<DeviceArray<unsigned char>>(shape.numel() * hebb::dtype_bytes(dtype)));
    return {arrays_.back()->data(), dtype, shape};
  }

 private:
  std::vector<std::unique_ptr<DeviceArray<unsigned char>>> arrays_;
};

/// Runs f() in the two settings that together find most faults: threads forward and copies late, threads in reverse and
/// copies early. The number of multiprocessors stays.
template <class F> void both_ways(F&& f) {
  {
    INFO("forward, late");
    const simt::ScopedSettings scope({simt::Order::forward, simt::Timing::late, 1, simt::settings().multiprocessors});
    f();
  }
  {
    INFO("reverse, early");
    const simt::ScopedSettings scope({simt::Order::reverse, simt::Timing::early, 3, simt::settings().multiprocessors});
    f();
  }
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace hebb_test
