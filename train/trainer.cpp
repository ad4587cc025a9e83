// The loop, one step, and checkpoints. Start-up: trainer_start.cpp.
#include "train/trainer.h"

#include <fmt/core.h>

#include <cmath>

#include "core/elapsed.h"
#include "core/map_faults.h"
#include "core/plural.h"
#include "core/progress.h"

namespace hebb {
namespace {

/// "nan", "inf" or "-inf".
std::string not_finite(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

}  // namespace

int Trainer::run() {
  if (!training_) { return static_cast<int>(ExitCode::kDone); }  // it was complete
  try {
    stop_.note_signals();
    return loop();
  } catch (const std::exception& error) {
    log_.end_bar();
    if (dynamic_cast<const DataError*>(&error) != nullptr && ranks_.is_first()) {
      log_.warn(saved_step_ > 0 ? fmt::format("the last checkpoint is that of step {:d}: with the data in place the "
                                              "same command goes on from there",
                                              saved_step_)
                                : "there is no checkpoint yet");
    }
    log_.error(error.what());
    throw;
  }
}

int Trainer::loop() {
  log_.begin_bar("train", config_.train.steps, state_.step);
  stop_.agree_at_start();
  for (;;) {
    const bool is_validated =
        !validation_->is_due(state_.step) || validation_->run(*training_, state_.step, stop_, *reporter_);
    if (checkpoint_due()) { save(); }
    if (state_.step >= config_.train.steps && is_validated) { return finish(); }
    if (stop_.stops()) { return stop(); }
    reporter_->step(train_step());
  }
}

/// Saves where the data is lost: all steps before are whole. Other ranks are inside of a step then.
Batch Trainer::next_batch() {
  try {
    return loader_->next_batch();
  } catch (const LostDataError&) {
    if (ranks_.size() == 1 && state_.step > 0 && state_.step != saved_step_) { save(); }
    throw;
  }
}

StepReport Trainer::train_step() {
  const auto begin = Clock::now();
  const CommCounts before = ranks_.communicator().counts();
  const Batch batch = next_batch();
  for (const std::string& notice : batch.notices) { log_.say(notice); }
  StepReport report;
  report.lr = training_->optimizer->lr(state_.step);
  forward_backward(batch, report);
  apply(batch, report);
  state_.step += 1;
  stop_.count_step();
  state_.tokens += config_.train.tokens_per_step();
  if (reporter_->steps() == 0 && batch.valid_targets > 0) { reporter_->warn_of_unreached(state_.step); }
  validation_->next_step();
  // So that what is reported has all of its communication.
  if (reporter_->is_logged(state_.step)) { training_->complete_values(); }
  report.step = state_.step;
  report.tokens = state_.tokens;
  report.skipped = skips_.total();
  report.seconds = seconds_since(begin);
  report.comm_seconds = ranks_.communicator().counts().seconds - before.seconds;
  report.sent_bytes = ranks_.communicator().counts().sent_bytes() - before.sent_bytes();
  return report;
}

/// Enqueues the passes of a step, lane by lane; the losses are in training_->row_loss.
void Trainer::forward_backward(const Batch& batch, StepReport& report) {
  const bool is_empty = batch.valid_targets == 0;
  training_->begin_step(state_.step, is_empty ? std::nan("") : 1.0 / static_cast<double>(batch.valid_targets));
  const TrainConfig& train = config_.train;
  PassSettings settings{.training = true,
                        .document_mask = train.document_mask,
                        .random_window = random_window(state_.step),
                        .seed = train.seed,
                        .step = state_.step};
  const size_t lanes = static_cast<size_t>(training_->own_lanes());
  std::vector<Statistics> statistics(batch.micro.size());
  for (size_t lane = 0; lane < lanes; ++lane) {
    training_->begin_lane(static_cast<int>(lane));
    for (size_t i = lane; i < batch.micro.size() && !is_empty; i += lanes) {
      const MicroBatch& rows = batch.micro[i];
      const int64_t tokens = rows.rows * rows.length;
      settings.sends = i + 1 == batch.micro.size() ? training_->sends_in_last_pass() : nullptr;
      settings.statistics = reporter_->is_logged(state_.step + 1) ? &statistics[i] : nullptr;
      ranks_.flight().at(state_.step, "passes", static_cast<int64_t>(i));
      training_->passes->run(rows, settings,
                             training_->row_loss.tensor().slice(static_cast<int64_t>(i) * tokens, {tokens}));
    }
    training_->end_lane();
  }
  if (reporter_->is_logged(state_.step + 1) && !is_empty) {
    report.statistics = join_statistics(gather_statistics(host_, statistics, training_->own_lanes()));
  }
}

int64_t Trainer::random_window(int64_t step) const {
  const auto& window = config_.train.random_window;
  const bool is_on =
      window && Rng(config_.train.seed, "random_window", static_cast<uint64_t>(step)).uniform() < window->p;
  return is_on ? window->window : 0;
}

std::string Trainer::reason_to_skip(const Batch& batch, const StepReport& report) const {
  if (batch.valid_targets == 0) { return "no target of the batch is valid"; }
  if (!std::isfinite(report.loss)) { return "the loss is " + not_finite(report.loss); }
  if (!std::isfinite(report.norms.global)) { return "the gradient norm is " + not_finite(report.norms.global); }
  for (const auto& [group, norm] : report.norms.groups) {
    if (!std::isfinite(norm)) {
      return fmt::format("the gradient norm of optimizer.groups.{:d} is {}", group, not_finite(norm));
    }
  }
  return "";
}

void Trainer::apply(const Batch& batch, StepReport& report) {
  ranks_.flight().at(state_.step, "update");
  const StepEnd end = training_->finish_step(state_.step, batch.valid_targets, stop_.is_wanted_after_step());
  stop_.agree(end.stops);
  report.loss = end.outcome.loss;
  report.norms = end.outcome.norms;
  report.spike = spikes_.add(report.loss);
  count(batch, report);
  training_->finite->check(state_.step + 1);
}

void Trainer::count(const Batch& batch, const StepReport& report) {
  const std::string reason = reason_to_skip(batch, report);
  if (reason.empty()) {
    skips_.applied();
    return;
  }
  log_.say(fmt::format("step {:d} skipped: {} (rows {:d} to {:d})", state_.step + 1, reason, batch.first_row,
                       batch.first_row + config_.train.batch_size - 1),
           LogLevel::warning);
  skips_.skipped(state_.step, reason, batch.valid_targets > 0);
}

bool Trainer::checkpoint_due() const {
  const bool is_at_multiple = state_.step % config_.train.checkpoint.every == 0;
  return state_.step > 0 && state_.step != saved_step_ && (is_at_multiple || state_.step >= config_.train.steps);
}

void Trainer::save() {
  const auto begin = Clock::now();
  state_.skipped = skips_.total();
  state_.consecutive_skips = skips_.consecutive();
  state_.spike_window = spikes_.values();
  state_.loader = loader_->state();
  saved_step_ = state_.step;
  ranks_.flight().at(state_.step, "save");
  training_->complete_values();
  const SharedState shared{training_->exchange.get(), training_->memories.get()};
  if (shared.exchange != nullptr && config_.train.comm.value_or(CommConfig{}).verify) {
    shared.exchange->verify(training_->stream);
  }
  if (ranks_.is_first()) {
    warn_of_all(folder_.require_own());  // before something is written
    const CheckpointConfig& c = config_.train.checkpoint;
    const fs::path path =
        folder_.checkpoints().save(state_, folder_.files(), training_->stream, training_->model.params(),
                                   {c.keep, c.keep_every}, shared, [this] { sync_files(); });
    log_.say("saved " + path.string());
  } else {
    send_shared(training_->stream, shared);
    log_.sync();
  }
  host_.communicator().barrier(training_->stream);  // no rank goes on, or ends, before the checkpoint is there
  reporter_->add_save_seconds(seconds_since(begin));
}

void Trainer::warn_of_all(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    if (!note.empty()) { log_.warn(note); }
  }
}

/// Brings onto the disk what a checkpoint, or the exit code, vouches for.
void Trainer::sync_files() {
  if (ranks_.is_first()) {
    warn_of_all(folder_.require_own());
    warn_of_all(reporter_->sync());
  }
  log_.sync();
}

int Trainer::stop() {
  const bool has_learned = state_.step > 0;  // initial values are made again
  if (has_learned && state_.step != saved_step_) { save(); }
  const std::string reason = stop_.reason();
  sync_files();
  log_.end_bar();
  log_.say(fmt::format("stopped {} by {}; the same command goes on from here",
                       has_learned ? fmt::format("after step {:d}", state_.step) : "before the first step", reason));
  log_.sync();
  return static_cast<int>(config_.train.exit_code_on_stop);
}

int Trainer::finish() {
  sync_files();
  log_.end_bar();
  if (skips_.total() > 0) {
    log_.warn(fmt::format("{:d} of {:d} steps were skipped; train.log names each with its reason", skips_.total(),
                          state_.step));
  }
  log_.say(reporter_->summary(folder_.path(), state_.step));
  log_.sync();
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace hebb
