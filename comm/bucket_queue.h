#pragma once
#include <functional>
#include <vector>

#include "comm/bucket_layout.h"
#include "core/side_stream.h"

namespace hebb {

/// Buckets of gradients on their way: each is sent as soon as the gradients of its parameters are final, during the
/// backward pass, beside it where the device can. They are sent in flat order, by the thread that runs the pass, so
/// that all ranks send the same ones in the same order.
class BucketQueue {
 public:
  /// Enqueues the exchange of a bucket on a stream.
  using Send = std::function<void(Stream& stream, int64_t bucket)>;

  /// The layout outlives this. compute: the device.
  BucketQueue(const BucketLayout& layout, const Stream& compute, Send send);

  /// Later work of `compute` does not touch the gradient of the parameter. Once a parameter and step.
  void parameter_is_final(Stream& compute, int parameter);
  /// Buckets, from the first on, whose parameters are final.
  int64_t ready() const { return ready_; }
  /// Instead, where a graph of the pass was launched that did this when it was recorded: `ready` buckets then.
  void graph_is_launched(int64_t ready);
  /// After the pass: all other parameters are final. Later work of `compute` happens when all is sent.
  void finish(Stream& compute);

 private:
  void begin_step();
  void send_ready();

  const BucketLayout& layout_;
  Send send_;
  std::vector<std::vector<int64_t>> buckets_of_;  // parameters
  std::vector<int64_t> open_;                     // buckets: parameters that are not final
  int64_t ready_ = 0, sent_ = 0;
  SideStream side_;  // mark b: bucket b is ready; the last: all are
};

}  // namespace hebb
