#include "core/device_timer.h"

#include <chrono>

#ifdef HEBB_HAVE_CUDA
#include "core/cuda_device.h"
#endif

namespace hebb {

struct DeviceTimer::State {
  std::chrono::steady_clock::time_point begin;
#ifdef HEBB_HAVE_CUDA
  std::unique_ptr<HEBB_DEVICE::Event> first, last;
#endif
};

DeviceTimer::DeviceTimer() : state_(std::make_unique<State>()) {}
DeviceTimer::~DeviceTimer() = default;

void DeviceTimer::start([[maybe_unused]] Stream& stream) {
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) {
    if (state_->first == nullptr) {
      state_->first = std::make_unique<HEBB_DEVICE::Event>();
      state_->last = std::make_unique<HEBB_DEVICE::Event>();
    }
    state_->first->record(stream);
    return;
  }
#endif
  state_->begin = std::chrono::steady_clock::now();
}

double DeviceTimer::stop([[maybe_unused]] Stream& stream) {
#ifdef HEBB_HAVE_CUDA
  if (stream.device == DeviceKind::cuda) {
    state_->last->record(stream);
    state_->last->synchronize();
    return HEBB_DEVICE::Event::elapsed_ms(*state_->first, *state_->last);
  }
#endif
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - state_->begin).count();
}

}  // namespace hebb
