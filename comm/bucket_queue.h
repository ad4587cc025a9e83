#pragma once
#include <functional>
#include <vector>

#include "comm/bucket_layout.h"
#include "core/side_stream.h"

namespace hebb {

/// Buckets on their way between ranks, beside the passes where the device can: sums of gradients during the backward
/// pass, as soon as the gradients of their parameters are final, and new values before the next forward pass reads
/// them. The thread that runs the passes sends gradients in flat order and gathers values in reverse, so that all ranks
/// do the same in the same order.
class BucketQueue {
 public:
  /// Enqueues the exchange of a bucket on a stream.
  using Exchange = std::function<void(Stream& stream, int64_t bucket)>;

  /// The layout outlives this. compute: the device.
  BucketQueue(const BucketLayout& layout, const Stream& compute, Exchange send, Exchange gather);

  /// Later work of `compute` does not touch the gradient of the parameter. Once a parameter and step.
  void parameter_is_final(Stream& compute, int parameter);
  /// Buckets, from the first on, whose parameters are final.
  int64_t ready() const { return ready_; }
  /// Instead, where a graph of the pass was launched that did this when it was recorded: `ready` buckets then.
  void graph_is_launched(int64_t ready);
  /// After the pass: all other parameters are final. Later work of `compute` happens when all is sent.
  void finish(Stream& compute);

  /// Values are as `compute` has been told to make them. A device that works beside it gathers all buckets now, the
  /// last one first; the CPU gathers what is needed.
  void begin_values(Stream& compute);
  /// Later work of `compute` happens when the values of this bucket and of those behind it are there. Where it is being
  /// recorded as a graph: in each launch. Every rank calls it alike.
  void need_values(Stream& compute, int64_t bucket);

 private:
  void begin_step();
  void send_ready();
  void gather_from(int64_t bucket);

  const BucketLayout& layout_;
  Exchange send_, gather_;
  std::vector<std::vector<int64_t>> buckets_of_;  // parameters
  std::vector<int64_t> open_;                     // buckets: parameters that are not final
  int64_t ready_ = 0, sent_ = 0;
  int64_t to_gather_ = 0;  // buckets before this one are not gathered
  bool works_beside_;
  SideStream side_;  // mark b: bucket b is ready; point b: its values are there; the last: all gradients or values
};

}  // namespace hebb
