#include "core/stream.h"

#include <cstring>

#include "core/bfloat.h"
#include "core/launch_profile.h"
#include "core/parallel.h"

namespace hebb {

const char* device_name(DeviceKind device) {
  switch (device) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::cuda: return "cuda";
    case DeviceKind::count: return "count";
  }
  return "?";
}

#ifdef HEBB_HAVE_CUDA
namespace cuda {
void upload_bytes(Stream& stream, void* to, const void* from, int64_t bytes);
void download(Stream& stream, const std::vector<HostCopy>& copies);
void move_bytes(Stream& stream, void* to, const void* from, int64_t bytes);
void zero_bytes(Stream& stream, void* to, int64_t bytes);
void add_to(Stream& stream, const Tensor& y, const Tensor& x);
void convert(Stream& stream, const Tensor& to, const Tensor& from);
int device_count();
int64_t shared_bytes();
}  // namespace cuda
#endif

namespace {

/// Of what is no kernel of an operation.
void note(Stream& stream, const char* name, int64_t bytes) {
  if (stream.profile != nullptr) { stream.profile->begin(stream, {name, 0, static_cast<double>(bytes)}); }
}

}  // namespace

void copy_to_device(Stream& stream, const Tensor& device, const void* host) {
  if (stream.counting() || device.bytes() == 0) { return; }
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { return cuda::upload_bytes(stream, device.data, host, device.bytes()); }
#endif
  std::memmove(device.data, host, static_cast<size_t>(device.bytes()));
}

void copy_to_host(Stream& stream, void* host, const Tensor& device) {
  copy_to_host(stream, std::vector<HostCopy>{{host, device}});
}

void copy_to_host(Stream& stream, const std::vector<HostCopy>& copies) {
  if (stream.counting()) { return; }
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { return cuda::download(stream, copies); }
#endif
  for (const HostCopy& c : copies) {
    if (c.device.bytes() > 0) { std::memmove(c.host, c.device.data, static_cast<size_t>(c.device.bytes())); }
  }
}

void copy(Stream& stream, const Tensor& to, const Tensor& from) {
  HEBB_ASSERT(to.bytes() == from.bytes());
  if (stream.counting() || to.bytes() == 0) { return; }
  note(stream, "copy", 2 * to.bytes());
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { return cuda::move_bytes(stream, to.data, from.data, to.bytes()); }
#endif
  std::memmove(to.data, from.data, static_cast<size_t>(to.bytes()));
}

void fill_zero(Stream& stream, const Tensor& tensor) {
  if (stream.counting() || tensor.bytes() == 0) { return; }
  note(stream, "fill_zero", tensor.bytes());
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { return cuda::zero_bytes(stream, tensor.data, tensor.bytes()); }
#endif
  std::memset(tensor.data, 0, static_cast<size_t>(tensor.bytes()));
}

void add_to(Stream& stream, const Tensor& y, const Tensor& x) {
  HEBB_ASSERT(y.numel() == x.numel() && y.dtype == x.dtype);
  if (stream.counting()) { return; }
  note(stream, "add_to", 3 * y.bytes());
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { return cuda::add_to(stream, y, x); }
#endif
  if (y.dtype == DType::bf16) {
    bf16* out = y.as<bf16>();
    const bf16* in = x.as<bf16>();
    parallel_each(y.numel(), 1 << 14, [&](int64_t i) { out[i] = nearest_bf16(widened(out[i]) + widened(in[i])); });
    return;
  }
  dispatch_real(y.dtype, [&]<class S>(S) {
    S* out = y.as<S>();
    const S* in = x.as<S>();
    parallel_each(y.numel(), 1 << 14, [&](int64_t i) { out[i] += in[i]; });
  });
}

namespace {

template <class To, class From, class F> void convert_each(const Tensor& to, const Tensor& from, F&& one) {
  parallel_each(to.numel(), 1 << 14, [&](int64_t i) { to.as<To>()[i] = one(from.as<From>()[i]); });
}

}  // namespace

void convert(Stream& stream, const Tensor& to, const Tensor& from) {
  const auto is = [&](DType source, DType target) { return from.dtype == source && to.dtype == target; };
  const bool rounds = is(DType::f32, DType::bf16), widens = is(DType::bf16, DType::f32);
  HEBB_ASSERT(to.numel() == from.numel());
  HEBB_ASSERT(rounds || widens || is(DType::f32, DType::f64) || is(DType::f64, DType::f32));
  if (stream.counting()) { return; }
  note(stream, "convert", to.bytes() + from.bytes());
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { return cuda::convert(stream, to, from); }
#endif
  if (rounds) {
    convert_each<bf16, float>(to, from, nearest_bf16);
  } else if (widens) {
    convert_each<float, bf16>(to, from, widened);
  } else if (to.dtype == DType::f64) {
    convert_each<double, float>(to, from, [](float x) { return static_cast<double>(x); });
  } else {
    convert_each<float, double>(to, from, [](double x) { return static_cast<float>(x); });
  }
}

int64_t gpu_shared_bytes() {
#ifdef HEBB_HAVE_CUDA
  if (cuda::device_count() > 0) { return cuda::shared_bytes(); }
#endif
  return int64_t{227} << 10;
}

int64_t scratch_slots(const Stream& stream, int64_t tasks) { return stream.on_gpu() ? tasks : threads(); }

}  // namespace hebb
