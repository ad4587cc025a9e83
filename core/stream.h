#pragma once
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace hebb {

/// cpu: kernels run at once on the host's thread pool. cuda: kernels are enqueued. count: nothing is
/// launched and memory is only counted (arena.h), so that a dry run of the real model code gives
/// exact memory tables.
enum class DeviceKind { cpu, cuda, count };
const char* device_name(DeviceKind device);

class LaunchProfile;
class ProductList;

/// An ordered queue of kernels on one device.
struct Stream {
  DeviceKind device = DeviceKind::cpu;
  void* native = nullptr;        // cuda: owned by core/cuda_device.h; null: the default stream
  const char* last_kernel = "";  // args struct of the last launch, for error reports
  int64_t launches = 0;
  // Whether products of f32 on a GPU may round their operands to TF32, which keeps 10 bits of the mantissa. Of this
  // object alone: another Stream of the same device does not round.
  bool allows_tf32 = false;
  DeviceKind counted = DeviceKind::cpu;  // count: the device that the dry run stands for
  ProductList* products = nullptr;       // count: takes the matrix products (kernels/gemm/product_list.h)
  LaunchProfile* profile = nullptr;      // takes the time of each kernel

  bool counting() const { return device == DeviceKind::count; }
  bool on_gpu() const { return (counting() ? counted : device) == DeviceKind::cuda; }
};

/// Raw copy from host memory, which may change on return: the host does not wait (but for copies of megabytes).
void copy_to_device(Stream& stream, const Tensor& device, const void* host);
/// Raw copy to host memory, complete on return: the host waits for everything enqueued before.
void copy_to_host(Stream& stream, void* host, const Tensor& device);
/// Several of them, waited for once.
struct HostCopy {
  void* host;
  Tensor device;
};
void copy_to_host(Stream& stream, const std::vector<HostCopy>& copies);
void copy(Stream& stream, const Tensor& to, const Tensor& from);  // on the device; same bytes
void fill_zero(Stream& stream, const Tensor& tensor);
/// y += x; same shape and floating dtype.
void add_to(Stream& stream, const Tensor& y, const Tensor& x);
/// to = from with another dtype, between f32 and bf16 or f32 and f64 (round to nearest even); same number of elements.
void convert(Stream& stream, const Tensor& to, const Tensor& from);

/// Shared memory that a block of the GPU may have [bytes]; that of an H100 where no GPU can be asked.
int64_t gpu_shared_bytes();

/// Slots of scratch for a kernel of `tasks` tasks that go on at the same time: one a thread on the CPU, one a task on a
/// GPU.
int64_t scratch_slots(const Stream& stream, int64_t tasks);

/// Calls f with a float or double value according to dtype; other dtypes are programmer errors.
template <class F> void dispatch_real(DType dtype, F&& f) {
  if (dtype == DType::f32) {
    f(float{});
  } else {
    HEBB_ASSERT(dtype == DType::f64);
    f(double{});
  }
}

}  // namespace hebb
