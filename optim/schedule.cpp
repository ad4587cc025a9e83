#include "optim/schedule.h"

#include <cmath>
#include <numbers>

namespace hebb {

void fields(Fields& f, ScheduleConfig& c) {
  f.field("type", c.type)
      .one_of({"constant", "linear", "cosine", "wsd"})
      .help("Course of the learning rate after the warmup; wsd is constant, then decays.");
  f.field("warmup_steps", c.warmup_steps)
      .min(0)
      .unit("steps")
      .help("Linear warmup: the first step has lr / warmup_steps.");
  f.field("min_lr", c.min_lr)
      .min(0)
      .help("Learning rate at the end of the decay; it may lie above the peak.")
      .only_with(c.type != "constant", "a type that decays");
  const bool is_wsd = c.type == "wsd";
  if (f.mode() == Fields::Mode::write && !is_wsd) { return; }
  f.field("decay", c.decay)
      .one_of({"linear", "cosine", "one_minus_sqrt", "sqrt", "inverse"})
      .help("wsd: shape of the decay; inverse needs min_lr > 0.");
  f.field("decay_steps", c.decay_steps)
      .min(0)
      .unit("steps")
      .help("wsd: length of the decay, instead of decay_fraction; 0 = none.");
  if (f.mode() != Fields::Mode::write || !c.decay_steps) {
    f.field("decay_fraction", c.decay_fraction).min(0).max(1).help("wsd: length of the decay as a part of the run.");
  }
  if (!f.reading()) { return; }
  for (const char* key : {"decay", "decay_steps", "decay_fraction"}) {
    if (!is_wsd && f.written(key)) { f.fail(key, "needs type \"wsd\" (found \"" + c.type + "\")"); }
  }
  if (c.decay_steps && f.written("decay_fraction")) {
    f.fail("decay_fraction", "give either decay_steps or decay_fraction, not both");
  }
  f.require(c.decay != "inverse" || c.min_lr > 0, "min_lr", "a number > 0 with decay \"inverse\"");
}

int64_t ScheduleConfig::resolved_decay_steps(int64_t steps) const {
  return decay_steps.value_or(static_cast<int64_t>(std::floor(decay_fraction * static_cast<double>(steps) + 0.5)));
}

Schedule::Schedule(const ScheduleConfig& config, double peak, int64_t steps)
    : config_(config), peak_(peak), steps_(steps), decay_steps_(config.resolved_decay_steps(steps)) {}

double Schedule::decayed(double q) const {
  const std::string& shape = config_.type == "wsd" ? config_.decay : config_.type;
  if (shape == "inverse") { return 1 / (q / config_.min_lr + (1 - q) / peak_); }
  double y = 1 - q;
  if (shape == "cosine") {
    y = (1 + std::cos(std::numbers::pi * q)) / 2;
  } else if (shape == "one_minus_sqrt") {
    y = 1 - std::sqrt(q);
  } else if (shape == "sqrt") {
    y = std::sqrt(1 - q);
  }
  return config_.min_lr + (peak_ - config_.min_lr) * y;
}

double Schedule::operator()(int64_t step) const {
  const auto s = static_cast<double>(step);
  if (step < config_.warmup_steps) { return peak_ * (s + 1) / static_cast<double>(config_.warmup_steps); }
  if (config_.type == "constant") { return peak_; }
  const int64_t length = config_.type == "wsd" ? decay_steps_ : steps_ - config_.warmup_steps;
  const int64_t start = steps_ - length;
  return step < start ? peak_ : decayed((s - static_cast<double>(start)) / static_cast<double>(length));
}

}  // namespace hebb
