#include "train/training_state.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

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

/// Errors: ConfigError for layers whose state does not cross the lanes of a rank.
void check_layers(const RunConfig& config, int ranks, const Model& model) {
  const int64_t lanes = config.train.lanes.value_or(1);
  if (const std::vector<std::string> reasons = model.needs_all_rows(); lanes != ranks && !reasons.empty()) {
    throw config.error("train.lanes", fmt::format("{:d}", lanes), fmt::format("{:d}: {}", ranks, reasons.front()));
  }
}

bool has_lane_memories(const Model& model) {
  const auto& params = model.params().all();
  return std::any_of(params.begin(), params.end(), [](const auto& p) { return p->is_of_lane(); });
}

}  // namespace

TrainingState::TrainingState(const RunConfig& config, const Ranks& group, DeviceKind device, int64_t reserve_state,
                             int64_t reserve_work)
    : state(device, "model and optimizer memory"),
      work(device, "work memory"),
      model(config.model),
      micro_batch_tokens_(*config.train.micro_batch_size * config.train.sequence_length) {
  check_layers(config, group.size(), model);
  const bool has_lanes = GradientExchange::is_needed(config.train);
  stream.device = device;
  stream.counted = device_of(config, !stream.counting());
  stream.allows_tf32 = config.train.allow_tf32;
  state.reserve(reserve_state);
  work.reserve(reserve_work);
  model.set_recompute(recompute_mode(config.train.recompute));
  const bool shares = GradientExchange::shares(config.train, group.size());
  model.params().allocate(state, dtype_of_precision(*config.train.precision), true,
                          {.gradients = !has_lanes, .moments = !shares, .masters = !shares});
  const Schedule schedule(config.schedule, config.optimizer.lr, config.train.steps);
  optimizer = std::make_unique<Optimizer>(config.optimizer, schedule, model.params(), state);
  if (has_lanes) {
    exchange = std::make_unique<GradientExchange>(config, group, model.params(), *optimizer, stream, state);
    exchange->initialize(stream);
    model.call_before_reading([this](Stream& reader, size_t parameters) { exchange->need_values(reader, parameters); });
    if (has_lane_memories(model)) {
      memories = std::make_unique<LaneMemories>(group, model.params(), own_lanes(), state, work);
    }
  }
  finite = std::make_unique<FiniteCheck>(model.params(), memories.get(), state);
  if (group.size() > 1) {
    ranks = std::make_unique<RankPasses>(config, group, !model.needs_all_rows().empty(), device);
  }
  passes = std::make_unique<TrainingPasses>(config, own_lanes(), ranks.get(), model, stream, state, work);
  if (passes->uses_graphs() && !exchange) { optimizer->use_graphs(); }
  row_loss = Buffer(state, {config.train.tokens_per_step() / group.size()}, DType::f64, "losses of a step");
}

void TrainingState::begin_step(int64_t step, double scale) {
  model.params().zero_grads(stream);
  model.begin_step(stream, step);
  passes->begin_step(scale);
}

void TrainingState::run_validation(const MicroBatch& rows, int64_t own, PassSettings settings, const Tensor& row_loss) {
  settings.ranks = ranks.get();
  std::optional<AllRows> all;
  if (ranks && ranks->shares_rows()) { all.emplace(ranks->gather(stream, work, rows, own)); }
  settings.all_rows = all ? &*all : nullptr;
  run_micro_batch(model, stream, work, rows, settings, row_loss);
}

void TrainingState::make_values(const std::function<void()>& make) {
  exchange ? exchange->make_values(stream, make) : make();
}

void TrainingState::read_values(const std::function<void()>& use) {
  exchange ? exchange->read_values(stream, use) : use();
}

void TrainingState::start_lanes() {
  if (memories) { memories->start(stream); }
}

void TrainingState::begin_lane(int own_lane) {
  if (exchange) { exchange->begin_lane(stream); }
  if (memories) { memories->take_turn(own_lane); }
}

void TrainingState::end_lane() {
  if (exchange) { exchange->end_lane(stream); }
}

void TrainingState::complete_values() {
  if (exchange) { exchange->complete_values(stream); }
}

/// Of the own micro-batches, lane by lane.
std::vector<double> TrainingState::loss_sums(int64_t valid_targets) {
  std::vector<double> losses(static_cast<size_t>(row_loss.tensor().numel()));
  if (valid_targets > 0) { copy_to_host(stream, losses.data(), row_loss); }
  const int64_t count = row_loss.tensor().numel() / micro_batch_tokens_, lanes = own_lanes(), each = count / lanes;
  std::vector<double> sums(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto first = losses.begin() + i * micro_batch_tokens_;
    sums[static_cast<size_t>(i % lanes * each + i / lanes)] = std::accumulate(first, first + micro_batch_tokens_, 0.0);
  }
  return sums;
}

StepEnd TrainingState::finish_step(int64_t step, int64_t valid_targets, bool wants_stop) {
  if (memories) { memories->take_turn(0); }
  const auto after_update = [&] {
    model.after_step(stream, step, optimizer->applies());
    finite->enqueue(stream);
    return finite->result();
  };
  if (exchange) {
    exchange->reduce(stream, work);
    return exchange->finish(stream, step, loss_sums(valid_targets), valid_targets, wants_stop, after_update);
  }
  const int64_t losses = valid_targets > 0 ? row_loss.tensor().numel() : 0;
  optimizer->step(stream, step, row_loss.tensor().slice(0, {losses}), passes->scale());
  return {optimizer->finish(stream, after_update()), wants_stop};
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
