// The loop, one step, and what happens around steps. Start-up: trainer_start.cpp; lines: trainer_log.cpp.
#include "train/trainer.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

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
    signals_.emplace();
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
  agree_to_stop(any_rank_wants_to_stop());
  for (;;) {
    const bool is_validated = !validation_due() || validate();
    if (checkpoint_due()) { save(); }
    if (state_.step >= config_.train.steps && is_validated) { return finish(); }
    const std::string reason = ranks_.size() > 1 ? agreed_stop_ : stop_reason();
    if (!reason.empty()) { return stop(reason); }
    log(train_step());
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
  if (steps_done_ == 0 && batch.valid_targets > 0) { warn_of_unreached(); }
  state_.step += 1;
  steps_done_ += 1;
  state_.tokens += config_.train.tokens_per_step();
  validated_.clear();
  // So that what is reported has all of its communication.
  if (is_logged(state_.step)) { training_->complete_values(); }
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
      settings.statistics = is_logged(state_.step + 1) ? &statistics[i] : nullptr;
      ranks_.flight().at(state_.step, "passes", static_cast<int64_t>(i));
      training_->passes->run(rows, settings,
                             training_->row_loss.tensor().slice(static_cast<int64_t>(i) * tokens, {tokens}));
    }
    training_->end_lane();
  }
  if (is_logged(state_.step + 1) && !is_empty) {
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
  const StepEnd end = training_->finish_step(state_.step, batch.valid_targets, !stop_reason(steps_done_ + 1).empty());
  agree_to_stop(end.stops);
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

bool Trainer::validation_due() const {
  const int64_t every = config_.train.val_every, step = state_.step;
  const bool is_last = step >= config_.train.steps;
  return validated_.size() < validation_.size() && step > 0 && (is_last || (every > 0 && step % every == 0));
}

bool Trainer::validate() {
  const auto begin = Clock::now();
  training_->complete_values();
  for (const auto& source : validation_) {
    if (validated_.count(source->name()) == 0 && !validate_source(*source)) { return false; }
  }
  validation_seconds_.add(seconds_since(begin));
  return true;
}

/// Adds the losses of a group of micro-batches, one a lane, from row `first` on: those of a micro-batch first, then in
/// order of rows, so that the sum is the same for every number of ranks. Returns whether a rank wants to stop.
bool Trainer::add_validation_group(ValidationSource& source, int64_t first, const PassSettings& settings,
                                   LossSum& sum) {
  const int64_t lanes = training_->own_lanes(), rows_each = *config_.train.micro_batch_size;
  std::vector<uint64_t> words{stop_reason().empty() ? 0u : 1u};  // then loss and tokens of each own lane
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t begin = std::min(source.rows(), first + (ranks_.rank() * lanes + lane) * rows_each);
    const MicroBatch rows = source.read(begin, rows_each);
    std::vector<double> losses(rows.targets.size());
    if (rows.rows > 0) {
      const Tensor row_loss = training_->row_loss.tensor().slice(0, {rows.rows * rows.length});
      training_->run_validation(rows, rows.rows, settings, row_loss);
      copy_to_host(training_->stream, losses.data(), row_loss);
    } else if (training_->ranks && training_->ranks->shares_rows()) {  // others wait for a pass of this rank
      training_->run_validation(source.read(0, 1), 0, settings,
                                training_->row_loss.tensor().slice(0, {config_.train.sequence_length}));
    }
    words.push_back(std::bit_cast<uint64_t>(std::accumulate(losses.begin(), losses.end(), 0.0)));
    words.push_back(static_cast<uint64_t>(
        std::count_if(rows.targets.begin(), rows.targets.end(), [](int32_t t) { return t != -100; })));
  }
  const std::vector<uint64_t> all = host_.gather(words);
  bool stops = false;
  for (size_t rank = 0; rank < all.size(); rank += words.size()) {
    stops = stops || all[rank] != 0;
    for (size_t i = rank + 1; i < rank + words.size(); i += 2) {
      sum.loss += std::bit_cast<double>(all[i]);
      sum.tokens += static_cast<int64_t>(all[i + 1]);
    }
  }
  return stops;
}

/// False when a request to stop came in between: the run that goes on starts this source again.
bool Trainer::validate_source(ValidationSource& source) {
  Stream& stream = training_->stream;
  const CarriedState aside(stream, training_->work, training_->model.params());
  if (training_->memories) { training_->memories->read_first(stream); }
  const PassSettings settings{
      .document_mask = config_.train.document_mask, .seed = config_.train.seed, .step = state_.step};
  LossSum sum;
  bool stops = false;
  log_.begin_part("validation " + source.name(), source.rows());
  for (int64_t row = 0; row < source.rows() && !stops;) {
    ranks_.flight().at(state_.step, "validation", row);
    stops = add_validation_group(source, row, settings, sum);
    row = std::min(source.rows(), row + config_.train.lanes.value_or(1) * *config_.train.micro_batch_size);
    log_.update_part(row);
  }
  log_.end_part();
  aside.restore(stream);
  agree_to_stop(stops);
  const bool is_complete = !stops;
  if (is_complete) {
    log_validation(source.name(), sum.loss / static_cast<double>(sum.tokens), sum.tokens);
    validated_.insert(source.name());
  }
  return is_complete;
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
  save_seconds_.add(seconds_since(begin));
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
    warn_of_all({metrics_->sync(), tensorboard_->sync()});
  }
  log_.sync();
}

/// Several ranks stop when all know that one wants to.
void Trainer::agree_to_stop(bool stops) {
  if (!stops || ranks_.size() == 1) { return; }
  const std::string own = stop_reason(1);
  agreed_stop_ = own.empty() ? "a signal to another rank" : own;
}

/// Before the first step: after it, its record says so.
bool Trainer::any_rank_wants_to_stop() {
  if (ranks_.size() == 1) { return false; }
  const uint64_t own = stop_reason().empty() ? 0 : 1;
  const std::vector<uint64_t> all = host_.gather({&own, 1});
  return std::find(all.begin(), all.end(), 1) != all.end();
}

/// Of this rank, after so many steps. Time is that of the first.
std::string Trainer::stop_reason(int64_t steps_done) const {
  if (const std::string signal = signals_ ? signals_->received() : ""; !signal.empty()) { return signal; }
  // At least one step, so that a limit shorter than the start-up cannot hold a run in place.
  const double limit = config_.train.max_minutes;
  const bool is_over = limit > 0 && ranks_.is_first() && steps_done > 0 && seconds_since(started_) >= 60 * limit;
  return is_over ? "train.max_minutes = " + Json(limit).dump() : "";
}

int Trainer::stop(const std::string& reason) {
  const bool has_learned = state_.step > 0;  // initial values are made again
  if (has_learned && state_.step != saved_step_) { save(); }
  sync_files();
  log_.end_bar();
  log_.say(fmt::format("stopped {} by {}; the same command goes on from here",
                       has_learned ? fmt::format("after step {:d}", state_.step) : "before the first step", reason));
  log_.sync();
  return static_cast<int>(config_.train.exit_code_on_stop);
}

/// What the run came to, and what to do with it.
std::string Trainer::summary() const {
  const fs::path near = folder_.path().lexically_proximate(fs::current_path());
  const std::string path = near.string().starts_with("..") ? folder_.path().string() : near.string();
  std::string text = "done: " + plural(state_.step, "step") + " in " + folder_.path().string();
  if (steps_done_ > 0) {
    const double tokens = static_cast<double>(steps_done_) * static_cast<double>(config_.train.tokens_per_step());
    text += fmt::format("\n{}took {}, {:.0f} tokens/s in training",
                        steps_done_ < state_.step ? "the last " + std::to_string(steps_done_) + " " : "",
                        format_duration(seconds_since(started_)), tokens / passed_);
  }
  if (last_loss_) { text += fmt::format("\nlast training loss {:.4f}", *last_loss_); }
  for (const auto& [name, loss] : last_validation_) {
    text += fmt::format("{}validation {} {:.4f}", last_loss_ ? ", " : "\n", name, loss);
  }
  text += "\nnext: hebb report " + path;
  if (config_.data.tokenizer.is_object()) { text += "\n      hebb generate " + path + " --prompt TEXT"; }
  return text;
}

int Trainer::finish() {
  sync_files();
  log_.end_bar();
  if (skips_.total() > 0) {
    log_.warn(fmt::format("{:d} of {:d} steps were skipped; train.log names each with its reason", skips_.total(),
                          state_.step));
  }
  log_.say(summary());
  log_.sync();
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace hebb
