#pragma once
#include <functional>

#include "core/stream.h"

namespace hebb {

/// Takes bytes of a tensor, in order.
using TakeBytes = std::function<void(const void* bytes, size_t size)>;

/// Hands tensors of a stream's device to the host piece by piece: through one buffer, pinned where the device is a GPU,
/// and in place on the CPU.
class DeviceReader {
 public:
  /// buffer_bytes: of a piece, at most. The stream outlives this.
  explicit DeviceReader(Stream& stream, int64_t buffer_bytes = int64_t{64} << 20);
  ~DeviceReader();

  /// Waits for the device; what it hands to `take` lasts until that returns.
  void read(const Tensor& tensor, const TakeBytes& take);

 private:
  // Builds without a GPU read in place.
  [[maybe_unused]] Stream& stream_;
  [[maybe_unused]] int64_t buffer_bytes_;
  [[maybe_unused]] char* buffer_ = nullptr;
};

}  // namespace hebb
