#include "train/step_reporter.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "core/elapsed.h"
#include "core/plural.h"
#include "core/progress.h"
#include "train/memory_plan.h"
#include "train/start_lines.h"

namespace hebb {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// 629.1M.
std::string short_count(double count) {
  constexpr const char* kUnits[] = {"K", "M", "B", "T"};
  if (count < 1000) { return fmt::format("{:.0f}", count); }
  size_t unit = 0;
  for (count /= 1000; count >= 999.95 && unit + 1 < std::size(kUnits); count /= 1000) { ++unit; }
  return fmt::format("{:.1f}{}", count, kUnits[unit]);
}

/// NaN without a sign.
double shown(double x) { return std::isnan(x) ? std::nan("") : x; }

/// The first fields stay longest in a narrow terminal.
std::string bar_detail(const StepReport& report) {
  return fmt::format("loss {:.4f}, gnorm {:.3f}, lr {:.2e}", shown(report.loss), shown(report.norms.global), report.lr);
}

/// Seconds since 1970 (UTC), to the millisecond.
double wall_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1e3;
}

/// HH:MM:SS; hours may pass 99.
std::string clock_time(double seconds) {
  const long long whole = std::llround(seconds);
  return fmt::format("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

StepReporter::StepReporter(const RunContext& run, const TrainingState& training, int64_t validation_rows)
    : run_(run),
      training_(training),
      validation_rows_(validation_rows),
      peak_flops_(peak_flops(run.config)),
      flops_per_token_(training_flops_per_token(run.config, training.model)) {}

void StepReporter::open_files(const RunFolder& folder, int64_t step, int64_t saved_step) {
  metrics_ = std::make_unique<MetricsFile>(folder.path() / "metrics.jsonl", step);
  if (metrics_->removed_lines() > 0) {
    run_.log.say(fmt::format("removed {:d} lines of metrics.jsonl beyond step {:d}", metrics_->removed_lines(), step));
  }
  const int64_t every = folder.log_every_before(), last = metrics_->last_step();
  if (saved_step > 0 && last < std::max<int64_t>(1, every > 0 ? saved_step / every * every : 0)) {
    run_.log.warn(fmt::format(
        "metrics.jsonl ends at step {:d}, the checkpoint is of step {:d}: lines between them are lost (the machine may "
        "have stopped before they were on the disk)",
        last, saved_step));
  }
  tensorboard_ = std::make_unique<TensorBoardWriter>(folder.path() / "tb", step);
}

bool StepReporter::is_logged(int64_t completed) const {
  return completed == 1 || completed % run_.config.train.log_every == 0 || completed >= run_.config.train.steps;
}

std::optional<double> StepReporter::mfu(double step_seconds) const {
  const double flops = flops_per_token_ * static_cast<double>(run_.config.train.tokens_per_step());
  return peak_flops_ ? std::optional(flops / step_seconds / *peak_flops_) : std::nullopt;
}

/// What the process holds itself, or what the run holds on its GPU.
int64_t StepReporter::memory_bytes() const {
  return training_.stream.device == DeviceKind::cpu
             ? own_memory_bytes(read_system_file)
             : training_.state.reserved_bytes() + training_.work.reserved_bytes();
}

/// Until the end of the run: steps, and the validations and saves between them. A validation before the first one is
/// taken to go through its tokens as training does, without the two passes back.
double StepReporter::seconds_left(int64_t step) const {
  const TrainConfig& train = run_.config.train;
  const auto left = [&](int64_t every) {  // times, at the end too; this step's are yet to come
    return every <= 0 ? 1 : train.steps / every - (step - 1) / every + (train.steps % every != 0 ? 1 : 0);
  };
  const double rows = static_cast<double>(validation_rows_);
  const double validation = validation_seconds_.n > 0
                                ? validation_seconds_.value()
                                : step_seconds_ * rows / (3 * static_cast<double>(train.batch_size));
  const double save = save_seconds_.n > 0 ? save_seconds_.value() : 0;
  return step_seconds_ * static_cast<double>(train.steps - step) +
         validation * static_cast<double>(left(train.val_every)) +
         save * static_cast<double>(left(train.checkpoint.every));
}

void StepReporter::step(const StepReport& report) {
  steps_ += 1;
  passed_ += report.seconds;
  last_loss_ = report.loss;
  interval_.seconds += report.seconds;
  interval_.steps += 1;
  interval_.sent_bytes += report.sent_bytes;
  if (run_.ranks.size() > 1) { interval_.times.push_back({report.seconds, report.comm_seconds}); }
  if (report.spike) {
    run_.log.say(fmt::format("step {}: the loss {} is a spike (z = {})", report.step, Json(report.loss).dump(),
                             Json(*report.spike).dump()),
                 LogLevel::warning);
  }
  if (!is_logged(report.step)) {
    run_.log.update_bar(report.step, seconds_left(report.step));
    return;
  }
  warn_of_residuals(report);
  const double step_seconds = interval_.seconds / static_cast<double>(interval_.steps);
  largest_bytes_ = std::max(largest_bytes_, memory_bytes());
  const std::optional<CommTimes> comm = comm_times();
  if (comm) { largest_bytes_ = comm->peak_bytes; }
  interval_ = {};
  step_seconds_ = step_seconds;
  run_.log.step(console_line(report, step_seconds), bar_detail(report));
  run_.log.update_bar(report.step, seconds_left(report.step));
  if (!run_.ranks.is_first()) { return; }
  if (comm) { warn_of_slow_rank(*comm); }
  metrics_->add(metrics_line(report, step_seconds, comm));
  tensorboard_->add(report.step, tensorboard_values(report, step_seconds));
}

/// Of all ranks, since the last logged step; nothing for one rank. Every rank calls it.
std::optional<CommTimes> StepReporter::comm_times() {
  if (run_.ranks.size() == 1) { return std::nullopt; }
  const RankTimes own{.peak_bytes = largest_bytes_, .sent_bytes = interval_.sent_bytes, .steps = interval_.times};
  return compare_times(gather_times(run_.host, own), training_.stream.device == DeviceKind::cpu);
}

void StepReporter::warn_of_slow_rank(const CommTimes& times) {
  if (skew_.add(times)) {
    run_.log.warn(fmt::format(
        "{} has been the slowest in {:d} logged steps: the others wait for it (comm.skew {} of metrics.jsonl)",
        run_.ranks.name(times.slowest), SkewWatch::kLines, Json(times.skew).dump()));
  }
}

/// After the first step of a process: some parameters are of no use yet (a codebook before its first step), others lack
/// a backward pass.
void StepReporter::warn_of_unreached(int64_t step) {
  constexpr int64_t kNamed = 4;
  int64_t count = 0;
  std::string names;
  for (const auto& p : training_.model.params().all()) {
    if (!p->trained() || p->reached) { continue; }
    if (count++ < kNamed) { names += (names.empty() ? "" : ", ") + p->name(); }
  }
  if (count > 0) {
    run_.log.say(fmt::format("step {}: the loss does not reach {} {}: {}{}", step, count,
                             count == 1 ? "parameter, which stays as it is" : "parameters, which stay as they are",
                             names, count > kNamed ? ", ..." : ""),
                 LogLevel::warning);
  }
}

/// Once per layer: a solve by a fixed number of steps is far from converged (docs/layers/mesanet.md, Precision).
void StepReporter::warn_of_residuals(const StepReport& report) {
  constexpr double kResidual = 1e-2;
  for (const auto& [layer, values] : report.statistics) {
    const auto residual = values.find("residual_max");
    if (residual != values.end() && residual->second > kResidual && unconverged_.insert(layer).second) {
      run_.log.say(fmt::format("step {}: {} solves up to a residual of {}, above 0.01: cg_steps is too small",
                               report.step, layer, Json(residual->second).dump()),
                   LogLevel::warning);
    }
  }
}

std::string StepReporter::console_line(const StepReport& report, double step_seconds) const {
  const TrainConfig& train = run_.config.train;
  const auto utilization = mfu(step_seconds);
  return fmt::format(
      "step {}/{} loss {:.4f} ppl {:.2f} gnorm {:.3f} lr {:.2e} tok/s {:.0f} mfu {} mem {:.1f}GiB dt {:.0f}ms tokens "
      "{} eta {} skipped {}",
      report.step, train.steps, shown(report.loss), shown(std::exp(report.loss)), shown(report.norms.global), report.lr,
      static_cast<double>(train.tokens_per_step()) / step_seconds,
      utilization ? fmt::format("{:.1f}%", 100 * *utilization) : "n/a", static_cast<double>(largest_bytes_) / kGiB,
      1000 * step_seconds, short_count(static_cast<double>(report.tokens)), clock_time(seconds_left(report.step)),
      report.skipped);
}

Json StepReporter::metrics_line(const StepReport& report, double step_seconds,
                                const std::optional<CommTimes>& comm) const {
  Json line = Json::object({{"step", report.step},
                            {"time", wall_time()},
                            {"tokens", report.tokens},
                            {"loss", report.loss},
                            {"lr", report.lr},
                            {"grad_norm", report.norms.global},
                            {"skipped", report.skipped},
                            {"tokens_per_s", static_cast<double>(run_.config.train.tokens_per_step()) / step_seconds},
                            {"step_ms", 1000 * step_seconds},
                            {"mem_bytes", largest_bytes_}});
  if (const auto utilization = mfu(step_seconds)) { line.set("mfu", Json(*utilization)); }
  if (comm) { line.set("comm", comm->json()); }
  if (report.spike) { line.set("spike", Json(*report.spike)); }
  if (!report.statistics.empty()) {
    Json& layers = line.set("layers", Json::object());
    for (const auto& [layer, values] : report.statistics) {
      Json& entry = layers.set(layer, Json::object());
      for (const auto& [name, value] : values) { entry.set(name, Json(value)); }
    }
  }
  return line;
}

Scalars StepReporter::tensorboard_values(const StepReport& report, double step_seconds) const {
  Scalars values{{"train/loss", report.loss},
                 {"train/grad_norm", report.norms.global},
                 {"train/lr", report.lr},
                 {"perf/tok_per_s", static_cast<double>(run_.config.train.tokens_per_step()) / step_seconds},
                 {"perf/step_ms", 1000 * step_seconds},
                 {"mem/peak_gib", static_cast<double>(largest_bytes_) / kGiB}};
  if (const auto utilization = mfu(step_seconds)) { values.emplace_back("perf/mfu", *utilization); }
  for (const auto& [layer, statistics] : report.statistics) {
    for (const auto& [name, value] : statistics) { values.emplace_back("memory/" + layer + "/" + name, value); }
  }
  return values;
}

void StepReporter::validation(int64_t step, const std::string& name, double loss, int64_t tokens) {
  std::erase_if(last_validation_, [&](const auto& before) { return before.first == name; });
  last_validation_.emplace_back(name, loss);
  run_.log.say(fmt::format("step {}/{} val {} loss {:.4f} ppl {:.2f}", step, run_.config.train.steps, name, shown(loss),
                           shown(std::exp(loss))));
  if (!std::isfinite(loss)) {
    run_.log.warn(fmt::format(
        "step {}: the validation loss of {} is not finite: weights are not, or what the model computes from them", step,
        name));
  }
  if (!run_.ranks.is_first()) { return; }
  metrics_->add(Json::object({{"step", Json(step)},
                              {"time", Json(wall_time())},
                              {"val", Json(name)},
                              {"loss", Json(loss)},
                              {"ppl", Json(std::exp(loss))},
                              {"tokens", Json(tokens)}}));
  tensorboard_->add(step, {{"eval/" + name + "/loss", loss}, {"eval/" + name + "/ppl", std::exp(loss)}});
}

std::string StepReporter::summary(const fs::path& folder, int64_t step) const {
  const fs::path near = folder.lexically_proximate(fs::current_path());
  const std::string path = near.string().starts_with("..") ? folder.string() : near.string();
  std::string text = "done: " + plural(step, "step") + " in " + folder.string();
  if (steps_ > 0) {
    const double tokens = static_cast<double>(steps_) * static_cast<double>(run_.config.train.tokens_per_step());
    text += fmt::format("\n{}took {}, {:.0f} tokens/s in training",
                        steps_ < step ? "the last " + std::to_string(steps_) + " " : "",
                        format_duration(seconds_since(run_.started)), tokens / passed_);
  }
  if (last_loss_) { text += fmt::format("\nlast training loss {:.4f}", *last_loss_); }
  for (const auto& [name, loss] : last_validation_) {
    text += fmt::format("{}validation {} {:.4f}", last_loss_ ? ", " : "\n", name, loss);
  }
  text += "\nnext: hebb report " + path;
  if (run_.config.data.tokenizer.is_object()) { text += "\n      hebb generate " + path + " --prompt TEXT"; }
  return text;
}

}  // namespace hebb
