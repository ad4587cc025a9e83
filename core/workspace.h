#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/arena.h"

namespace hebb {

/// Where an operation runs and takes its scratch memory from. An operation asks for scratch itself, by the same code on
/// every device, the counting one included, so that memory plans are exact in builds without CUDA.
///
///   run(tape.workspace(), NormBackward{.d_h = ..., .h = ...});
///
/// The memory is released when the operation has been enqueued: later kernels on the stream come after it.
class Workspace {
 public:
  /// `scope` is the prefix of the names that memory plans show.
  Workspace(Stream& stream, Arena& arena, std::string scope = "")
      : stream_(&stream), arena_(&arena), scope_(std::move(scope)) {}
  Workspace(Workspace&&) = default;
  Workspace& operator=(Workspace&&) = default;
  virtual ~Workspace() = default;

  Stream& stream() const { return *stream_; }
  bool on_gpu() const { return stream_->on_gpu(); }
  /// Uninitialised memory that lives as long as the workspace. Throws MemoryError.
  virtual Tensor tensor(Shape shape, DType dtype, std::string_view name) {
    const bool named = arena_->device() == DeviceKind::count && !scope_.empty();
    buffers_.emplace_back(*arena_, shape, dtype, named ? scope_ + "/" + std::string(name) : std::string(name));
    return buffers_.back();
  }

 protected:
  /// For tests that bring memory of their own.
  explicit Workspace(Stream& stream) : stream_(&stream), arena_(nullptr) {}

 private:
  Stream* stream_;
  Arena* arena_;
  std::string scope_;
  std::vector<Buffer> buffers_;
};

}  // namespace hebb
