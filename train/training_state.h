#pragma once
#include <memory>

#include "layers/model.h"
#include "optim/optimizer.h"
#include "train/finite_check.h"
#include "train/run_config.h"
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
  std::unique_ptr<TrainingPasses> passes;
  Buffer row_loss;  // [rows of a step * T] f64

  /// `config` must be resolved and outlive this. reserve_*: see Arena::reserve.
  TrainingState(const RunConfig& config, DeviceKind device, int64_t reserve_state, int64_t reserve_work);

  /// Before the passes of step `step`: gradients will be those of `scale` times the sum of losses.
  void begin_step(int64_t step, double scale);
  /// After them: the update, from the first `tokens` losses. Whether it applies is decided on the device; the host
  /// waits once, at the end.
  StepOutcome finish_step(int64_t step, int64_t tokens);
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
