#include "layers/ham/thresholds.h"

#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/ham/ham.h"
#include "layers/model_config.h"

namespace hebb {

HamThresholds::HamThresholds(ParamStore& store, int64_t layers)
    : counters_(store.declare_scratch("selected tokens", {layers, 2}, DType::i64, Combine::sum)),
      gradient_(store.declare_scratch("threshold gradient", {1}, std::nullopt)),
      rates_(store.declare_scratch("threshold rates", {kAdamWRates}, DType::f64)) {}

std::shared_ptr<HamThresholds> HamThresholds::of(const BuildContext& c) {
  std::shared_ptr<HamThresholds>& shared = c.shared.ham_thresholds;
  if (shared == nullptr) { shared = std::make_shared<HamThresholds>(c.params, c.model.num_layers); }
  return shared;
}

size_t HamThresholds::add(const HamThresholdConfig& config, Param* threshold) {
  members_.push_back({config, threshold, learned_});
  learned_ += threshold != nullptr ? 1 : 0;
  return members_.size() - 1;
}

void HamThresholds::begin_step(size_t layer, Stream& stream) {
  if (members_[layer].threshold != nullptr) { fill_zero(stream, counter(members_[layer])); }
}

void HamThresholds::count(size_t layer, Stream& stream, const Tensor& selected, int64_t tokens) {
  if (members_[layer].threshold != nullptr) { run(stream, CountSelected{counter(members_[layer]), selected, tokens}); }
}

void HamThresholds::update(size_t layer, Stream& stream, int64_t step, const Tensor& applies) {
  const Member& member = members_[layer];
  const HamThresholdConfig& c = member.config;
  if (member.threshold == nullptr || step < c.freeze_steps) { return; }
  Param& p = *member.threshold;
  p.reached = true;
  const Tensor counted = c.scope == "layer" ? counter(member) : counters_.slice(0, {learned_, 2});
  run(stream, ThresholdGradient{
                  .gradient = gradient_, .counters = counted, .target = c.target, .gain = c.gain, .clip = c.clip});
  const double t = static_cast<double>(p.updates + 1);
  const double rates[kAdamWRates] = {1.0, c.lr / (1.0 - std::pow(c.betas[0], t)),
                                     1.0 / (1.0 - std::pow(c.betas[1], t))};
  copy_to_device(stream, rates_, rates);
  run(stream, AdamW{.p = p.value,
                    .m = p.m,
                    .v = p.v,
                    .grad = gradient_,
                    .beta1 = c.betas[0],
                    .beta2 = c.betas[1],
                    .eps = c.eps,
                    .rates = rates_,
                    .clip = {},
                    .applies = applies});
}

}  // namespace hebb
