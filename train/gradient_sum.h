#pragma once
#include <vector>

#include "comm/lanes.h"
#include "comm/ordered_reduce.h"
#include "optim/optimizer.h"
#include "train/ranks.h"
#include "train/run_config.h"

namespace hebb {

/// The gradients of a run with lanes: flat buffers that Param::grad points into, their sum over the lanes of this rank
/// and over ranks, and the sums of squares of what this rank owns of it.
class GradientSum {
 public:
  /// params: allocated without gradients. own_lanes: of this rank. gathers: every rank gets the whole sum; otherwise
  /// each has its own parts. optimizer outlives this.
  GradientSum(const RunConfig& config, const Ranks& ranks, int own_lanes, bool gathers, DType dtype,
              Optimizer& optimizer, Arena& state);
  /// Memory that is written once, behind that of the constructor.
  void find_segments(Arena& state);
  void initialize(Stream& stream);

  const BucketLayout& layout() const { return layout_; }
  /// Where the gradients of the first own lane go, and in the end the sum of all.
  const Tensor& first() const { return buffers_.back().tensor(); }
  /// Free between the update and the next lane; another one than first() where a rank has several lanes.
  const Tensor& spare() const { return buffers_.front().tensor(); }
  /// Sums of squares of the segments that this rank owns.
  const Tensor& squares() const { return squares_.tensor(); }
  size_t segments() const { return segments_.size(); }
  int64_t bytes() const;

  /// The gradients of the next own lane begin. is_zero: their buffer need not be cleared.
  void begin_lane(Stream& stream, bool is_zero);
  /// Whether those of the next lane lie in spare().
  bool begins_in_spare() const { return sums_.next().data == spare().data; }
  void end_lane(Stream& stream) { sums_.finish(stream); }

  /// Scratch of a bucket on its way between ranks.
  ReduceScratch scratch(Workspace& workspace) const;
  /// Sums a bucket over ranks. In place: what is sent has left when the sum is written.
  void send_bucket(Stream& stream, int64_t bucket, const ReduceScratch& scratch) const;
  void send_all(Stream& stream, Arena& work) const;
  /// After the sum.
  void sum_squares(Stream& stream) const;

 private:
  void point_gradients(const Tensor& flat) const;

  Ranks ranks_;
  Optimizer& optimizer_;
  bool gathers_;
  BucketLayout layout_;
  std::vector<Buffer> buffers_;  // flat gradients
  LaneSums sums_;
  DType wire_;                          // of gradients between ranks
  std::vector<ElementRange> segments_;  // owned, in flat order
  Buffer begins_, ends_, squares_;      // of the segments
};

/// Every rank gets the parts that all have of a bucket of `flat`.
void gather_bucket(const Ranks& ranks, const BucketLayout& layout, Stream& stream, const Tensor& flat, int64_t bucket);

}  // namespace hebb
