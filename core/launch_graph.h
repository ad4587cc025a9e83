#pragma once
#include <functional>
#include <memory>

#include "core/stream.h"

namespace hebb {

/// Work for a stream that repeats with the same arguments. On a GPU it is enqueued as it is the first time, recorded as
/// a CUDA graph the second time, and from then on launched as one.
class LaunchGraph {
 public:
  LaunchGraph();
  ~LaunchGraph();
  LaunchGraph(LaunchGraph&&) noexcept;
  LaunchGraph& operator=(LaunchGraph&&) noexcept;

  /// Enqueues what `work` enqueues; calls it unless it is recorded. After the first call it must neither wait for the
  /// device nor change what it does; what it copies from the host must be the same bytes.
  void run(Stream& stream, const std::function<void()>& work);
  bool is_recorded() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether what the stream is given now is being recorded as a graph, to happen when that is launched.
bool is_being_recorded(Stream& stream);

}  // namespace hebb
