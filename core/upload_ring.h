#pragma once
// Included by what implements core/cuda_device.h.
#include <array>
#include <exception>
#include <memory>

#include "core/cuda_device.h"

namespace hebb::HEBB_DEVICE {

/// Host memory at one end of copies to and from the device, so that the host need not wait for those it starts.
/// Segments are used in turn; before one is used again, the copies of its last use are waited for.
class UploadRing {
 public:
  explicit UploadRing(int64_t segment_bytes) : segment_bytes_(segment_bytes) {}
  ~UploadRing() {
    if (memory_ != nullptr) { free_pinned(memory_); }
  }

  /// Room for a copy that `stream` is given before the next call; null where it is larger than a segment.
  void* place(Stream& stream, int64_t bytes) {
    const int64_t size = (bytes + kUploadAlign - 1) / kUploadAlign * kUploadAlign;
    if (size > segment_bytes_) { return nullptr; }
    if (memory_ == nullptr) { memory_ = static_cast<char*>(allocate_pinned(kSegments * segment_bytes_)); }
    if (used_ + size > segment_bytes_) {
      left(current_).record(stream);
      current_ = (current_ + 1) % kSegments;
      used_ = 0;
      if (left_[current_] != nullptr && !left_[current_]->has_happened()) { left_[current_]->synchronize(); }
    }
    void* const place = memory_ + static_cast<int64_t>(current_) * segment_bytes_ + used_;
    used_ += size;
    return place;
  }

 private:
  static constexpr size_t kSegments = 4;
  Event& left(size_t segment) {
    if (left_[segment] == nullptr) { left_[segment] = std::make_unique<Event>(); }
    return *left_[segment];
  }

  int64_t segment_bytes_, used_ = 0;
  size_t current_ = 0;
  char* memory_ = nullptr;
  std::array<std::unique_ptr<Event>, kSegments> left_;  // recorded when its segment was left
};

/// Host memory that a recorded Graph copies from each time.
struct GraphUploads {
  explicit GraphUploads(int64_t bytes)
      : bytes(bytes), memory(bytes > 0 ? static_cast<char*>(allocate_pinned(bytes)) : nullptr) {}
  ~GraphUploads() {
    if (memory != nullptr) { free_pinned(memory); }
  }
  GraphUploads(const GraphUploads&) = delete;
  GraphUploads& operator=(const GraphUploads&) = delete;

  void* place(int64_t size) {
    const int64_t begin = used;
    used += (size + kUploadAlign - 1) / kUploadAlign * kUploadAlign;
    HEBB_ASSERT(used <= bytes);
    return memory + begin;
  }

  /// Calls `work` while `recording` is this. Returns what it threw, or null.
  std::exception_ptr collect(GraphUploads*& recording, const std::function<void()>& work) {
    recording = this;
    std::exception_ptr failure;
    try {
      work();
    } catch (...) { failure = std::current_exception(); }
    recording = nullptr;
    return failure;
  }

  int64_t bytes, used = 0;
  char* memory;
};

}  // namespace hebb::HEBB_DEVICE
