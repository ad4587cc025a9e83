#pragma once
#include "layers/ham_config.h"

namespace hebb {

/// The learned thresholds of one model, steered by how many tokens their layers select (spec 50, section 5). Counts
/// are integers, so that an update does not depend on how the batch was cut into micro-batches.
class HamThresholds {
 public:
  /// Those of the model that is being built.
  static std::shared_ptr<HamThresholds> of(const BuildContext& c);

  /// Adds a layer; `threshold` null: it has no learned one. Returns its index.
  size_t add(const HamThresholdConfig& config, Param* threshold);
  /// HAM layers of the model.
  int64_t layers() const { return static_cast<int64_t>(members_.size()); }

  void begin_step(size_t layer);
  void count(size_t layer, int64_t selected, int64_t tokens);
  /// Moves the layer's threshold, once all layers have counted. `step`: 0-based.
  void update(size_t layer, Stream& stream, int64_t step);

 private:
  struct Member {
    HamThresholdConfig config;
    Param* threshold;
    int64_t selected = 0, tokens = 0;
    double fraction() const { return static_cast<double>(selected) / static_cast<double>(tokens); }
  };
  /// How much more than its target is selected.
  double gap(const Member& member) const;

  std::vector<Member> members_;
};

}  // namespace hebb
