#include "layers/ham_thresholds.h"

#include <algorithm>
#include <cmath>

#include "kernels/adamw.h"

namespace hebb {
namespace {

/// One AdamW step of a parameter of one number, on the host.
template <class S> void step_number(Stream& stream, Param& p, double gradient, const HamThresholdConfig& c) {
  S value{}, m{}, v{}, grad = static_cast<S>(gradient);
  copy_to_host(stream, &value, p.value);
  copy_to_host(stream, &m, p.m);
  copy_to_host(stream, &v, p.v);
  const double t = static_cast<double>(++p.updates);
  const auto number = [](S& x) { return Tensor{&x, dtype_of<S>, {1}}; };
  Stream host;
  cpu::run(host, AdamW{number(value), number(m), number(v), number(grad), c.lr, c.betas[0], c.betas[1], c.eps, 0.0, 1.0,
                       1.0 - std::pow(c.betas[0], t), 1.0 - std::pow(c.betas[1], t)});
  copy_to_device(stream, p.value, &value);
  copy_to_device(stream, p.m, &m);
  copy_to_device(stream, p.v, &v);
}

}  // namespace

std::shared_ptr<HamThresholds> HamThresholds::of(const BuildContext& c) {
  std::shared_ptr<void>& shared = c.shared["ham/thresholds"];
  if (shared == nullptr) { shared = std::make_shared<HamThresholds>(); }
  return std::static_pointer_cast<HamThresholds>(shared);
}

size_t HamThresholds::add(const HamThresholdConfig& config, Param* threshold) {
  members_.push_back({config, threshold});
  return members_.size() - 1;
}

void HamThresholds::begin_step(size_t layer) { members_[layer].selected = members_[layer].tokens = 0; }

void HamThresholds::count(size_t layer, int64_t selected, int64_t tokens) {
  members_[layer].selected += selected;
  members_[layer].tokens += tokens;
}

double HamThresholds::gap(const Member& member) const {
  if (member.config.scope == "layer") { return member.fraction() - member.config.target; }
  double sum = 0, layers = 0;
  for (const Member& m : members_) {
    if (m.threshold != nullptr) {
      sum += m.fraction();
      layers += 1;
    }
  }
  return sum / layers - member.config.target;
}

void HamThresholds::update(size_t layer, Stream& stream, int64_t step) {
  const Member& member = members_[layer];
  const HamThresholdConfig& c = member.config;
  if (member.threshold == nullptr || member.tokens == 0 || step < c.freeze_steps) { return; }
  const double gradient = std::clamp(-c.gain * gap(member), -c.clip, c.clip);
  dispatch_real(member.threshold->value.dtype,
                [&](auto zero) { step_number<decltype(zero)>(stream, *member.threshold, gradient, c); });
}

}  // namespace hebb
