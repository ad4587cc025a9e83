#include "core/side_stream.h"

#include <vector>

#ifdef HEBB_HAVE_CUDA
#include "core/cuda_side.h"
#endif

namespace hebb {

struct SideStream::State {
  Stream stream;
#ifdef HEBB_HAVE_CUDA
  std::vector<std::unique_ptr<cuda::Event>> marks, points;
#endif
};

SideStream::SideStream(const Stream& beside, [[maybe_unused]] int64_t marks, [[maybe_unused]] int64_t points)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.stream.device = beside.device;
  s.stream.counted = beside.counted;
#ifdef HEBB_HAVE_CUDA
  if (beside.device != DeviceKind::cuda) { return; }
  s.stream = cuda::create_side_stream();
  for (int64_t i = 0; i < marks; ++i) { s.marks.push_back(std::make_unique<cuda::Event>()); }
  for (int64_t i = 0; i < points; ++i) {
    s.points.push_back(std::make_unique<cuda::Event>());
    s.points.back()->record(s.stream);  // so that a graph can hold a wait for it
  }
#endif
}

SideStream::~SideStream() {
#ifdef HEBB_HAVE_CUDA
  if (state_->stream.native != nullptr) { cuda::destroy_stream(state_->stream); }
#endif
}

Stream& SideStream::stream() { return state_->stream; }

void SideStream::mark([[maybe_unused]] Stream& beside, [[maybe_unused]] int64_t i) {
#ifdef HEBB_HAVE_CUDA
  if (!state_->marks.empty()) { state_->marks[static_cast<size_t>(i)]->record(beside); }
#endif
}

void SideStream::wait_for([[maybe_unused]] int64_t i) {
#ifdef HEBB_HAVE_CUDA
  if (!state_->marks.empty()) { state_->marks[static_cast<size_t>(i)]->make_wait(state_->stream); }
#endif
}

void SideStream::reach([[maybe_unused]] int64_t i) {
#ifdef HEBB_HAVE_CUDA
  if (!state_->points.empty()) { state_->points[static_cast<size_t>(i)]->record(state_->stream); }
#endif
}

void SideStream::join([[maybe_unused]] Stream& beside, [[maybe_unused]] int64_t i) {
#ifdef HEBB_HAVE_CUDA
  if (!state_->points.empty()) { state_->points[static_cast<size_t>(i)]->make_wait(beside); }
#endif
}

}  // namespace hebb
