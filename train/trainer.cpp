// The loop, one step, and what happens around steps. Start-up: trainer_start.cpp; lines: trainer_log.cpp.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/micro_batch.h"

namespace hebb {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// "score_mean" of "score_std".
std::string mean_beside(const std::string& deviation) { return deviation.substr(0, deviation.size() - 3) + "mean"; }

/// Joins a micro-batch's statistics with those of the ones before: means over the `count` micro-batches of the step,
/// but the least and greatest of what ends in _min and _max, and of standard deviations (_std, beside a _mean) the
/// means of squares, which finish_deviations() makes deviations of the whole step: nothing depends on the size of a
/// micro-batch.
void join(Statistics& step, const Statistics& part, double count) {
  for (const auto& [layer, values] : part) {
    for (const auto& [name, value] : values) {
      const auto [entry, is_first] = step[layer].try_emplace(name, 0.0);
      double& joined = entry->second;
      if (name.ends_with("_min")) {
        joined = is_first ? value : std::min(joined, value);
      } else if (name.ends_with("_max")) {
        joined = is_first ? value : std::max(joined, value);
      } else if (name.ends_with("_std")) {
        const double mean = values.at(mean_beside(name));
        joined += (value * value + mean * mean) / count;
      } else {
        joined += value / count;
      }
    }
  }
}

void finish_deviations(Statistics& step) {
  for (auto& [layer, values] : step) {
    for (auto& [name, value] : values) {
      if (name.ends_with("_std")) {
        const double mean = values.at(mean_beside(name));
        value = std::sqrt(std::max(0.0, value - mean * mean));
      }
    }
  }
}

std::string number(double value) { return Json(value).dump(); }

}  // namespace

int Trainer::run() {
  try {
    signals_.emplace();
    return loop();
  } catch (const std::exception& error) {
    log_.end_bar();
    log_.error(error.what());
    throw;
  }
}

int Trainer::loop() {
  log_.begin_bar("train", config_.train.steps, state_.step);
  for (;;) {
    const bool is_validated = !validation_due() || validate();
    if (checkpoint_due()) { save(); }
    if (state_.step >= config_.train.steps && is_validated) { return finish(); }
    if (const std::string reason = stop_reason(); !reason.empty()) { return stop(reason); }
    log(train_step());
  }
}

StepReport Trainer::train_step() {
  const auto begin = Clock::now();
  const Batch batch = loader_->next_batch();
  for (const std::string& notice : batch.notices) { log_.say(notice); }
  StepReport report;
  report.lr = memory_->optimizer->lr(state_.step);
  forward_backward(batch, report);
  apply(batch, report);
  if (steps_done_ == 0 && batch.valid_targets > 0) { warn_of_unreached(); }
  state_.step += 1;
  steps_done_ += 1;
  state_.tokens += config_.train.tokens_per_step();
  validated_.clear();
  report.seconds = seconds_since(begin);
  return report;
}

/// Enqueues the passes of a step; the losses are in memory_->row_loss.
void Trainer::forward_backward(const Batch& batch, StepReport& report) {
  const bool is_empty = batch.valid_targets == 0;
  memory_->begin_step(state_.step, is_empty ? std::nan("") : 1.0 / static_cast<double>(batch.valid_targets));
  if (is_empty) { return; }
  const TrainConfig& train = config_.train;
  PassSettings settings;
  settings.training = true;
  settings.document_mask = train.document_mask;
  settings.random_window = random_window(state_.step);
  settings.seed = train.seed;
  settings.step = state_.step;
  int64_t at = 0;
  for (const MicroBatch& rows : batch.micro) {
    Statistics statistics;
    settings.statistics = is_logged(state_.step + 1) ? &statistics : nullptr;
    const int64_t tokens = rows.rows * rows.length;
    memory_->passes->run(rows, settings, memory_->row_loss.tensor().slice(at, {tokens}));
    join(report.statistics, statistics, static_cast<double>(batch.micro.size()));
    at += tokens;
  }
  finish_deviations(report.statistics);
}

int64_t Trainer::random_window(int64_t step) const {
  const auto& window = config_.train.random_window;
  const bool is_on =
      window && Rng(config_.train.seed, "random_window", static_cast<uint64_t>(step)).uniform() < window->p;
  return is_on ? window->window : 0;
}

std::string Trainer::reason_to_skip(const Batch& batch, const StepReport& report) const {
  if (batch.valid_targets == 0) { return "no target of the batch is valid"; }
  if (!std::isfinite(report.loss)) { return "the loss is " + number(report.loss); }
  if (!std::isfinite(report.norms.global)) { return "the gradient norm is " + number(report.norms.global); }
  for (const auto& [group, norm] : report.norms.groups) {
    if (!std::isfinite(norm)) {
      return "the gradient norm of optimizer.groups." + std::to_string(group) + " is " + number(norm);
    }
  }
  return "";
}

void Trainer::apply(const Batch& batch, StepReport& report) {
  const StepOutcome outcome =
      memory_->finish_step(state_.step, batch.valid_targets > 0 ? memory_->row_loss.tensor().numel() : 0);
  report.loss = outcome.loss;
  report.norms = outcome.norms;
  report.spike = spikes_.add(report.loss);
  count(batch, report);
  memory_->finite->check(state_.step + 1);
}

void Trainer::count(const Batch& batch, const StepReport& report) {
  const std::string reason = reason_to_skip(batch, report);
  if (reason.empty()) {
    skips_.applied();
    return;
  }
  log_.say("step " + std::to_string(state_.step + 1) + " skipped: " + reason + " (rows " +
               std::to_string(batch.first_row) + " to " +
               std::to_string(batch.first_row + config_.train.batch_size - 1) + ")",
           LogLevel::warning);
  skips_.skipped(state_.step, reason, batch.valid_targets > 0);
}

bool Trainer::validation_due() const {
  const int64_t every = config_.train.val_every, step = state_.step;
  const bool is_last = step >= config_.train.steps;
  return validated_.size() < validation_.size() && step > 0 && (is_last || (every > 0 && step % every == 0));
}

bool Trainer::validate() {
  for (const auto& source : validation_) {
    if (validated_.count(source->name()) == 0 && !validate_source(*source)) { return false; }
  }
  return true;
}

/// False when a request to stop came in between: the run that goes on starts this source again.
bool Trainer::validate_source(ValidationSource& source) {
  Stream& stream = memory_->stream;
  const CarriedState aside(stream, memory_->work, memory_->model.params());
  PassSettings settings;
  settings.document_mask = config_.train.document_mask;
  settings.seed = config_.train.seed;
  settings.step = state_.step;
  double sum = 0;
  int64_t tokens = 0;
  log_.begin_bar("validation " + source.name(), source.rows());
  for (int64_t row = 0; row < source.rows() && stop_reason().empty();) {
    const MicroBatch rows = source.read(row, *config_.train.micro_batch_size);
    const Tensor row_loss = memory_->row_loss.tensor().slice(0, {rows.rows * rows.length});
    run_micro_batch(memory_->model, stream, memory_->work, rows, settings, row_loss);
    std::vector<double> losses(rows.targets.size());
    copy_to_host(stream, losses.data(), row_loss);
    sum = std::accumulate(losses.begin(), losses.end(), sum);
    tokens += std::count_if(rows.targets.begin(), rows.targets.end(), [](int32_t t) { return t != -100; });
    row += rows.rows;
    log_.update_bar(row);
  }
  log_.end_bar();
  aside.restore(stream);
  const bool is_complete = stop_reason().empty();
  if (is_complete) {
    log_validation(source.name(), sum / static_cast<double>(tokens), tokens);
    validated_.insert(source.name());
  }
  log_.begin_bar("train", config_.train.steps, state_.step);
  return is_complete;
}

bool Trainer::checkpoint_due() const {
  const bool is_at_multiple = state_.step % config_.train.checkpoint.every == 0;
  return state_.step > 0 && state_.step != saved_step_ && (is_at_multiple || state_.step >= config_.train.steps);
}

void Trainer::save() {
  state_.skipped = skips_.total();
  state_.consecutive_skips = skips_.consecutive();
  state_.spike_window = spikes_.values();
  state_.loader = loader_->state();
  const CheckpointConfig& c = config_.train.checkpoint;
  const fs::path path = folder_.checkpoints().save(state_, folder_.config(), memory_->stream, memory_->model.params(),
                                                   {c.keep, c.keep_every});
  saved_step_ = state_.step;
  log_.say("saved " + path.string());
}

std::string Trainer::stop_reason() const {
  if (const std::string signal = signals_ ? signals_->received() : ""; !signal.empty()) { return signal; }
  // At least one step, so that a limit shorter than the start-up cannot hold a run in place.
  const double limit = config_.train.max_minutes;
  const bool is_over = limit > 0 && steps_done_ > 0 && seconds_since(started_) >= 60 * limit;
  return is_over ? "train.max_minutes = " + number(limit) : "";
}

int Trainer::stop(const std::string& reason) {
  const bool has_learned = state_.step > 0;  // initial values are made again
  if (has_learned && state_.step != saved_step_) { save(); }
  log_.end_bar();
  log_.say("stopped " +
           (has_learned ? "after step " + std::to_string(state_.step) : std::string("before the first step")) + " by " +
           reason + "; the same command goes on from here");
  return static_cast<int>(config_.train.exit_code_on_stop);
}

int Trainer::finish() {
  log_.end_bar();
  if (skips_.total() > 0) {
    log_.warn(std::to_string(skips_.total()) + " of " + std::to_string(state_.step) +
              " steps were skipped; train.log names each with its reason");
  }
  log_.say("done: " + std::to_string(state_.step) + " steps in " + folder_.path().string());
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace hebb
