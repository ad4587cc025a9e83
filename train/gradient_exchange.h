#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/bucket_queue.h"
#include "comm/host_exchange.h"
#include "comm/step_record.h"
#include "train/rank_values.h"

namespace hebb {

/// What a step came to.
struct StepEnd {
  StepOutcome outcome;
  bool stops = false;  // a rank wants to stop after it
};

/// What happens to gradients between the passes of a step and the optimizer, where a run has lanes
/// (docs/design/data-parallel.md): their sum over lanes and ranks, the decision that all ranks take alike, the update
/// of what this rank owns, and the gathering of new values. With train.zero 1 on several ranks the moments are shared,
/// and so are the values of parameters that passes read as bf16 copies: each rank has those of what it owns.
///
///   for (own lanes) { begin_lane(); passes; end_lane(); }
///   reduce();
///   finish(...);
///
/// Where it overlaps, the last pass of a step calls gradient_is_final(), and new values arrive during the next pass,
/// which calls need_values().
class GradientExchange {
 public:
  /// Whether a run needs one. Without, the store has gradients and moments of its own.
  static bool is_needed(const TrainConfig& train) { return train.lanes.value_or(1) > 1; }
  static bool shares(const TrainConfig& train, int ranks) { return ranks > 1 && train.zero == 1; }

  /// params: allocated without gradients, and without moments and masters where they are shared. optimizer, params and
  /// state outlive this.
  GradientExchange(const RunConfig& config, const Ranks& ranks, ParamStore& params, Optimizer& optimizer,
                   Stream& stream, Arena& state);
  /// Once, before the first step.
  void initialize(Stream& stream);

  int own_lanes() const { return own_lanes_; }
  /// The gradients of the next own lane begin: Param::grad are theirs, and zero when values have arrived.
  void begin_lane(Stream& stream);
  void end_lane(Stream& stream);
  /// Whether gradients can leave during the last pass of a step: those of a rank with one lane (train.comm.overlap).
  bool overlaps() const { return queue_ != nullptr && own_lanes_ == 1; }
  /// In that pass, where it overlaps: nothing is added to the gradient of a parameter any more. Sends what is complete.
  void gradient_is_final(Stream& stream, const Tensor& grad);
  /// See BucketQueue.
  int64_t ready_buckets() const { return queue_->ready(); }
  void graph_is_launched(int64_t ready) { queue_->graph_is_launched(ready); }
  /// After the last own lane: sums over ranks of what has not been sent. Scratch from `work`: as large as a bucket,
  /// where nothing overlaps.
  void reduce(Stream& stream, Arena& work);
  /// Before a pass reads the first `parameters` parameters of the store: their values are there for later work of the
  /// stream. Every rank calls it alike.
  void need_values(Stream& stream, size_t parameters);
  /// The same for all, before anything else reads values.
  void complete_values(Stream& stream) { need_values(stream, params_.all().size()); }
  /// Decides and updates. losses: loss sums of the own micro-batches, lane by lane; valid_targets: of the whole batch.
  /// after_update enqueues what follows the update, and says what the host wants to know of it. Errors: CommError.
  StepEnd finish(Stream& stream, int64_t step, std::span<const double> losses, int64_t valid_targets, bool wants_stop,
                 const std::function<std::vector<HostCopy>()>& after_update);

  /// Makes whole() that of all ranks until the next step or collect(). Every rank calls it.
  void collect(Stream& stream, Kept kept);
  /// What is kept of a trained parameter: of a checkpoint to write after collect(), or room for that of one that is
  /// read, before keep().
  Tensor whole(const Param& p, Kept kept) const { return values_.whole(p, kept); }
  void keep(Stream& stream, Kept kept) { values_.keep(stream, kept); }
  /// Param::value of every parameter has room while `make` writes it, and its copy.
  void make_values(Stream& stream, const std::function<void()>& make);
  /// Param::value of every parameter is whole while `use` reads it. Every rank calls it.
  void read_values(Stream& stream, const std::function<void()>& use);

  /// Compares what must be equal on all ranks. Errors: NumericError naming the tensor and the rank.
  void verify(Stream& stream);

  int64_t gradient_bytes() const { return sum_.bytes(); }
  int64_t value_bytes() const { return values_.bytes(); }  // beside those of the store

 private:
  void find_needed();
  void prepare_overlap(Stream& stream, Arena& state);
  StepRecord make_record(Stream& stream, std::span<const double> losses, bool wants_stop);
  void spread(Stream& stream, const StepDecision& decision);
  void send_values(Stream& stream);
  void gather_values(Stream& stream, int64_t bucket);

  Ranks ranks_;
  HostExchange host_;
  ParamStore& params_;
  Optimizer& optimizer_;
  int own_lanes_;
  GradientSum sum_;
  RankValues values_;
  RecordShape shape_;
  StepRules rules_;
  std::vector<int64_t> needed_;  // by number of parameters: the first bucket that holds one of them
  std::map<const void*, int> index_of_gradient_;
  std::unique_ptr<Workspace> overlap_memory_;  // of overlap_scratch_
  ReduceScratch overlap_scratch_;
  std::unique_ptr<BucketQueue> queue_;  // null: nothing overlaps
  bool spare_is_zero_ = false;          // sum_.spare(), once values have arrived by way of it
};

}  // namespace hebb
