#pragma once
#include <memory>

#include "layers/model.h"
#include "optim/optimizer.h"
#include "train/finite_check.h"
#include "train/gradient_exchange.h"
#include "train/training_passes.h"

namespace hebb {

/// Everything of a run that lives on its device, built the same way for the dry run that plans memory
/// and for the run itself.
struct TrainingState {
  Stream stream;
  Arena state, work;  // what stays; what a pass needs
  Model model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<FiniteCheck> finite;
  std::unique_ptr<GradientExchange> exchange;  // null: one lane
  std::unique_ptr<LaneMemories> memories;      // null: one lane, or no fast weights of lanes
  std::unique_ptr<RankPasses> ranks;           // null: one rank
  std::unique_ptr<TrainingPasses> passes;
  Buffer row_loss;  // [own rows of a step * T] f64, in the order of Batch::micro

  /// `config` must be resolved for so many ranks and outlive this. reserve_*: see Arena::reserve. Errors: ConfigError
  /// for layers that cannot be trained in lanes or by several ranks.
  TrainingState(const RunConfig& config, const Ranks& group, DeviceKind device, int64_t reserve_state,
                int64_t reserve_work);

  int own_lanes() const { return exchange ? exchange->own_lanes() : 1; }

  /// Before the passes of step `step`: gradients will be those of `scale` times the sum of losses.
  void begin_step(int64_t step, double scale);
  /// A pass outside of training: row_loss [rows.rows * length] f64. The first `own` rows count for other ranks.
  void run_validation(const MicroBatch& rows, int64_t own, PassSettings settings, const Tensor& row_loss);
  /// Calls `make` while every parameter has room for its whole value.
  void make_values(const std::function<void()>& make);
  /// Calls `use` while every value is whole on this rank. Every rank calls it.
  void read_values(const std::function<void()>& use);
  /// After values have been loaded or made.
  void start_lanes();
  /// For PassSettings::sends of the last pass of a step; null: gradients leave in finish_step().
  GradientExchange* sends_in_last_pass() const { return exchange && exchange->overlaps() ? exchange.get() : nullptr; }
  /// Around the passes of each own lane.
  void begin_lane(int own_lane);
  void end_lane();
  /// Before anything but a pass reads values of trained parameters: those of all ranks are there. Every rank calls it.
  void complete_values();
  /// After them: the update. Without an exchange whether it applies is decided on the device, and the host waits once,
  /// at the end. valid_targets: of the whole batch; 0: no pass has run. wants_stop: see StepEnd.
  StepEnd finish_step(int64_t step, int64_t valid_targets, bool wants_stop);

 private:
  std::vector<double> loss_sums(int64_t valid_targets);
  int64_t micro_batch_tokens_;
};

/// Values of fast weights, thresholds and counters, set aside to be put back.
class CarriedState {
 public:
  CarriedState(Stream& stream, Arena& arena, const ParamStore& params);
  void restore(Stream& stream) const;

 private:
  std::vector<std::pair<Tensor, Buffer>> copies_;
};

}  // namespace hebb
