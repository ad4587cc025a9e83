#include "core/launch_profile.h"

#include <chrono>

#include "core/stream.h"
#ifdef HEBB_HAVE_CUDA
#include "core/cuda_device.h"
#endif

namespace hebb {
namespace {

double now(Stream& stream) {
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) { cuda::synchronize(stream); }
#else
  (void)stream;
#endif
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void LaunchProfile::begin(Stream& stream, const LaunchWork& work) {
  end(stream);
  current_ = &operations_[work.name];
  ++current_->launches;
  current_->flops += work.flops;
  current_->bytes += work.bytes;
  since_ = now(stream);
}

void LaunchProfile::end(Stream& stream) {
  if (current_ != nullptr) { current_->seconds += now(stream) - since_; }
  current_ = nullptr;
}

}  // namespace hebb
