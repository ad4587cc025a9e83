#pragma once
#include <memory>

#include "core/stream.h"

namespace hebb {

/// A queue of work on a stream's device whose work goes on at the same time as the stream's, after points of it that
/// are waited for: by events on a GPU. On the CPU work happens at once, in the order of the calls.
class SideStream {
 public:
  /// marks, points: of `beside` and of this one, that can be told apart.
  SideStream(const Stream& beside, int64_t marks, int64_t points);
  ~SideStream();

  /// Kernels that take scratch from their stream (cuda::stream_scratch) and products do not run on it.
  Stream& stream();
  /// Mark i is what `beside` has been given so far. Where that is being recorded as a graph: in each launch.
  void mark(Stream& beside, int64_t i);
  /// Later work happens after mark i, as it was set last or by the last launch of a graph.
  void wait_for(int64_t i);
  /// Point i is what this one has been given so far.
  void reach(int64_t i);
  /// Later work of `beside` happens after point i, as it was reached last. Where that is being recorded as a graph:
  /// last before each launch.
  void join(Stream& beside, int64_t i);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hebb
