#include "layers/ham_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "layers/ops/host_values.h"

namespace hebb {
namespace {

constexpr double kReset = 0.05;  // a state that keeps less than this is as good as reset

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_sigmoid(std::vector<double> logits) {
  for (double& x : logits) { x = 1.0 / (1.0 + std::exp(-x)); }
  return mean(logits);
}

double deviation(const std::vector<double>& values) {
  const double center = mean(values);
  double sum = 0;
  for (const double x : values) { sum += (x - center) * (x - center); }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double reset_fraction(Stream& stream, const Tensor& decay, const Tensor& a_log, const Tensor& dt_bias) {
  const std::vector<double> a = host_values(stream, decay), rate = host_values(stream, a_log),
                            bias = host_values(stream, dt_bias);
  int64_t resets = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t head = i % rate.size();
    const double z = a[i] + bias[head], softplus = z > 20 ? z : std::log1p(std::exp(z));
    resets += std::exp(-std::exp(rate[head]) * softplus) < kReset ? 1 : 0;
  }
  return static_cast<double>(resets) / static_cast<double>(a.size());
}

}  // namespace

std::map<std::string, double> ham_statistics(Pass& pass, const HamReadings& r) {
  Stream& stream = pass.stream();
  const auto values = [&](Var v) { return host_values(stream, pass.tape.value(v)); };
  std::vector<double> fractions;
  for (const int64_t n : r.selected) {
    fractions.push_back(static_cast<double>(n) / static_cast<double>(pass.length()));
  }
  std::map<std::string, double> s;
  s["kv_fraction"] = mean(fractions);
  s["kv_fraction_min"] = *std::min_element(fractions.begin(), fractions.end());
  s["kv_fraction_max"] = *std::max_element(fractions.begin(), fractions.end());
  if (r.tau) { s["tau"] = *r.tau; }
  if (r.score) {
    const std::vector<double> score = values(r.score);
    s["score_mean"] = mean(score);
    s["score_std"] = deviation(score);
  }
  if (r.rnn_gate) { s["gate_rnn_mean"] = mean_sigmoid(values(r.rnn_gate)); }
  if (r.kv_gate) { s["gate_kv_mean"] = mean_sigmoid(values(r.kv_gate)); }
  s["reset_fraction"] = reset_fraction(stream, pass.tape.value(r.decay), r.a_log, r.dt_bias);
  return s;
}

}  // namespace hebb
