#pragma once
#include "layers/ham/config.h"

namespace hebb {

/// The learned thresholds of one model, steered by how many tokens their layers select (docs/layers/ham.md,
/// Thresholds). Counts are integers, so that an update does not depend on how the batch was cut into micro-batches.
/// Everything happens on the device.
class HamThresholds {
 public:
  /// For at most `layers` layers whose thresholds `store` holds.
  HamThresholds(ParamStore& store, int64_t layers);
  /// Those of the model that is being built.
  static std::shared_ptr<HamThresholds> of(const BuildContext& c);

  /// Adds a layer; `threshold` null: it has no learned one. Returns its index.
  size_t add(const HamThresholdConfig& config, Param* threshold);
  /// HAM layers of the model.
  int64_t layers() const { return static_cast<int64_t>(members_.size()); }

  void begin_step(size_t layer, Stream& stream);
  /// selected [B] i32: of the rows of a micro-batch with so many tokens.
  void count(size_t layer, Stream& stream, const Tensor& selected, int64_t tokens);
  /// Moves the layer's threshold, once all layers have counted, where applies [1] f64 is not 0. `step`: 0-based. Marks
  /// the threshold as reached: who knows what `applies` is counts its updates.
  void update(size_t layer, Stream& stream, int64_t step, const Tensor& applies);

 private:
  struct Member {
    HamThresholdConfig config;
    Param* threshold;
    int64_t learned;  // how many learned thresholds come before it
  };
  Tensor counter(const Member& member) const { return counters_.slice(2 * member.learned, {1, 2}); }

  std::vector<Member> members_;
  int64_t learned_ = 0;
  const Tensor& counters_;           // [layers, 2] i64: selected and all tokens of those with learned thresholds
  const Tensor &gradient_, &rates_;  // of the threshold that is being moved
};

}  // namespace hebb
