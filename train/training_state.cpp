#include "train/training_state.h"

#include "kernels/gemm/gemm.h"
#include "train/choose_device.h"

namespace hebb {
namespace {

Recompute recompute_mode(const std::string& name) {
  return name == "block"   ? Recompute::block
         : name == "mixer" ? Recompute::mixer
         : name == "ffn"   ? Recompute::ffn
                           : Recompute::none;
}

}  // namespace

TrainingState::TrainingState(const RunConfig& config, DeviceKind device, int64_t reserve_state, int64_t reserve_work)
    : state(device, "model and optimizer memory"), work(device, "work memory"), model(config.model) {
  stream.device = device;
  stream.counted = device_of(config, !stream.counting());
  stream.allows_tf32 = config.train.allow_tf32;
  state.reserve(reserve_state);
  work.reserve(reserve_work);
  model.set_recompute(recompute_mode(config.train.recompute));
  model.params().allocate(state, dtype_of_precision(*config.train.precision), true);
  const Schedule schedule(config.schedule, config.optimizer.lr, config.train.steps);
  optimizer = std::make_unique<Optimizer>(config.optimizer, schedule, model.params(), state);
  finite = std::make_unique<FiniteCheck>(model.params(), state);
  passes = std::make_unique<TrainingPasses>(config, model, stream, state, work);
  if (passes->uses_graphs()) { optimizer->use_graphs(); }
  row_loss = Buffer(state, {config.train.tokens_per_step()}, DType::f64, "losses of a step");
}

void TrainingState::begin_step(int64_t step, double scale) {
  model.params().zero_grads(stream);
  model.begin_step(stream, step);
  passes->begin_step(scale);
}

StepOutcome TrainingState::finish_step(int64_t step, int64_t tokens) {
  optimizer->step(stream, step, row_loss.tensor().slice(0, {tokens}), passes->scale());
  model.after_step(stream, step, optimizer->applies());
  finite->enqueue(stream);
  return optimizer->finish(stream, finite->result());
}

CarriedState::CarriedState(Stream& stream, Arena& arena, const ParamStore& params) {
  for (const auto& p : params.all()) {
    if (!p->trained()) {
      copies_.emplace_back(p->value, Buffer(arena, p->value.shape, p->value.dtype, p->name() + " set aside"));
      copy(stream, copies_.back().second, p->value);
    }
  }
}

void CarriedState::restore(Stream& stream) const {
  for (const auto& [value, kept] : copies_) { copy(stream, value, kept); }
}

}  // namespace hebb
