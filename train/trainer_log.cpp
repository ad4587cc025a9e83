// What a run reports about its steps: console line, metrics.jsonl, TensorBoard.
#include <cmath>
#include <cstdio>

#include "train/memory_plan.h"
#include "train/trainer.h"

namespace hebb {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// 629.1M.
std::string short_count(double count) {
  constexpr const char* kUnits[] = {"K", "M", "B", "T"};
  char text[32];
  if (count < 1000) {
    std::snprintf(text, sizeof text, "%.0f", count);
    return text;
  }
  size_t unit = 0;
  for (count /= 1000; count >= 999.95 && unit + 1 < std::size(kUnits); count /= 1000) { ++unit; }
  std::snprintf(text, sizeof text, "%.1f%s", count, kUnits[unit]);
  return text;
}

/// NaN without a sign.
double shown(double x) { return std::isnan(x) ? std::nan("") : x; }

/// HH:MM:SS; hours may pass 99.
std::string clock_time(double seconds) {
  const auto whole = static_cast<long long>(seconds + 0.5);
  char text[48];
  std::snprintf(text, sizeof text, "%02lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  return text;
}

}  // namespace

bool Trainer::is_logged(int64_t completed) const {
  return completed == 1 || completed % config_.train.log_every == 0 || completed >= config_.train.steps;
}

std::optional<double> Trainer::mfu(double step_seconds) const {
  const double flops = flops_per_token_ * static_cast<double>(config_.train.tokens_per_step());
  return peak_flops_ ? std::optional(flops / step_seconds / *peak_flops_) : std::nullopt;
}

/// The peak of the process, or what it holds on its GPU.
int64_t Trainer::memory_bytes() const {
  return memory_->stream.device == DeviceKind::cpu ? peak_memory_bytes()
                                                   : memory_->state.reserved_bytes() + memory_->work.reserved_bytes();
}

void Trainer::log(const StepReport& report) {
  interval_.seconds += report.seconds;
  interval_.steps += 1;
  if (report.spike) {
    log_.say("step " + std::to_string(state_.step) + ": the loss " + Json(report.loss).dump() +
                 " is a spike (z = " + Json(*report.spike).dump() + ")",
             LogLevel::warning);
  }
  if (!is_logged(state_.step)) {
    log_.update_bar(state_.step);
    return;
  }
  warn_of_residuals(report.statistics);
  const double step_seconds = interval_.seconds / static_cast<double>(interval_.steps);
  interval_ = {};
  char detail[64];
  std::snprintf(detail, sizeof detail, "loss %.4f", report.loss);
  log_.step(console_line(report, step_seconds), state_.step, detail);
  if (!ranks_.is_first()) { return; }
  metrics_->add(metrics_line(report, step_seconds));
  tensorboard_->add(state_.step, tensorboard_values(report, step_seconds));
}

/// After the first step of a process: some parameters are of no use yet (a codebook before its first step), others lack
/// a backward pass.
void Trainer::warn_of_unreached() {
  constexpr int64_t kNamed = 4;
  int64_t count = 0;
  std::string names;
  for (const auto& p : memory_->model.params().all()) {
    if (!p->trained() || p->reached) { continue; }
    if (count++ < kNamed) { names += (names.empty() ? "" : ", ") + p->name(); }
  }
  if (count > 0) {
    log_.say("step " + std::to_string(state_.step + 1) + ": the loss does not reach " + std::to_string(count) +
                 (count == 1 ? " parameter, which stays as it is: " : " parameters, which stay as they are: ") + names +
                 (count > kNamed ? ", ..." : ""),
             LogLevel::warning);
  }
}

/// Once per layer: a solve by a fixed number of steps is far from converged (docs/layers/mesanet.md, Precision).
void Trainer::warn_of_residuals(const Statistics& statistics) {
  constexpr double kResidual = 1e-2;
  for (const auto& [layer, values] : statistics) {
    const auto residual = values.find("residual_max");
    if (residual != values.end() && residual->second > kResidual && unconverged_.insert(layer).second) {
      log_.say("step " + std::to_string(state_.step) + ": " + layer + " solves up to a residual of " +
                   Json(residual->second).dump() + ", above 0.01: cg_steps is too small",
               LogLevel::warning);
    }
  }
}

std::string Trainer::console_line(const StepReport& report, double step_seconds) const {
  const TrainConfig& train = config_.train;
  const auto utilization = mfu(step_seconds);
  char mfu_text[32] = "n/a";
  if (utilization) { std::snprintf(mfu_text, sizeof mfu_text, "%.1f%%", 100 * *utilization); }
  char line[512];
  std::snprintf(line, sizeof line,
                "step %lld/%lld loss %.4f ppl %.2f gnorm %.3f lr %.2e tok/s %.0f mfu %s mem %.1fGiB dt %.0fms tokens "
                "%s eta %s skipped %lld",
                static_cast<long long>(state_.step), static_cast<long long>(train.steps), shown(report.loss),
                shown(std::exp(report.loss)), shown(report.norms.global), report.lr,
                static_cast<double>(train.tokens_per_step()) / step_seconds, mfu_text,
                static_cast<double>(memory_bytes()) / kGiB, 1000 * step_seconds,
                short_count(static_cast<double>(state_.tokens)).c_str(),
                clock_time(static_cast<double>(train.steps - state_.step) * step_seconds).c_str(),
                static_cast<long long>(skips_.total()));
  return line;
}

Json Trainer::metrics_line(const StepReport& report, double step_seconds) const {
  Json line = Json::object({{"step", Json(state_.step)},
                            {"tokens", Json(state_.tokens)},
                            {"loss", Json(report.loss)},
                            {"lr", Json(report.lr)},
                            {"grad_norm", Json(report.norms.global)},
                            {"skipped", Json(skips_.total())},
                            {"tokens_per_s", Json(static_cast<double>(config_.train.tokens_per_step()) / step_seconds)},
                            {"step_ms", Json(1000 * step_seconds)},
                            {"mem_bytes", Json(memory_bytes())},
                            {"aux_loss", Json(0.0)}});
  if (const auto utilization = mfu(step_seconds)) { line.set("mfu", Json(*utilization)); }
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

Scalars Trainer::tensorboard_values(const StepReport& report, double step_seconds) const {
  Scalars values{{"train/loss", report.loss},
                 {"train/grad_norm", report.norms.global},
                 {"train/lr", report.lr},
                 {"perf/tok_per_s", static_cast<double>(config_.train.tokens_per_step()) / step_seconds},
                 {"perf/step_ms", 1000 * step_seconds},
                 {"mem/peak_gib", static_cast<double>(memory_bytes()) / kGiB}};
  if (const auto utilization = mfu(step_seconds)) { values.emplace_back("perf/mfu", *utilization); }
  for (const auto& [layer, statistics] : report.statistics) {
    for (const auto& [name, value] : statistics) { values.emplace_back("memory/" + layer + "/" + name, value); }
  }
  return values;
}

void Trainer::log_validation(const std::string& name, double loss, int64_t tokens) {
  char text[256];
  std::snprintf(text, sizeof text, "step %lld/%lld val %s loss %.4f ppl %.2f", static_cast<long long>(state_.step),
                static_cast<long long>(config_.train.steps), name.c_str(), shown(loss), shown(std::exp(loss)));
  log_.say(text);
  if (!std::isfinite(loss)) {
    log_.warn("step " + std::to_string(state_.step) + ": the validation loss of " + name +
              " is not finite: weights are not, or what the model computes from them");
  }
  if (!ranks_.is_first()) { return; }
  metrics_->add(Json::object({{"step", Json(state_.step)},
                              {"val", Json(name)},
                              {"loss", Json(loss)},
                              {"ppl", Json(std::exp(loss))},
                              {"tokens", Json(tokens)}}));
  tensorboard_->add(state_.step, {{"eval/" + name + "/loss", loss}, {"eval/" + name + "/ppl", std::exp(loss)}});
}

}  // namespace hebb
