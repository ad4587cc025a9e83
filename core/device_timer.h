#pragma once
#include <memory>

#include "core/stream.h"

namespace hebb {

/// Measures what a stream's device spends on the work between two calls: by events on a GPU, by the host's clock on the
/// CPU. Launches count as far as the device waits for them.
class DeviceTimer {
 public:
  DeviceTimer();
  ~DeviceTimer();

  /// Work that is enqueued from here on is measured.
  void start(Stream& stream);
  /// Waits for it. Milliseconds.
  double stop(Stream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hebb
