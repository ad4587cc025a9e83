#include "layers/ham/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/mean.h"
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

/// Which tokens were selected.
class Selection final : public StatisticsCollector {
 public:
  explicit Selection(const StatisticsOptions& o) : interval_(o.interval), single_(o.single) {}

  void add(const LayerReading& r) override {
    const Inspector::Record& mask = *r.find("mask");  // [1, T]
    const Inspector::Record* score = r.find("score");
    Layer& layer = layers_[r.name];
    const auto length = static_cast<int64_t>(mask.integers.size());
    std::vector<int64_t> growth;
    int64_t cached = 0;
    for (int64_t t = 0; t < length; ++t) {
      cached += mask.integers[static_cast<size_t>(t)];
      if (score != nullptr) { layer.scores[t / interval_].add(score->reals[static_cast<size_t>(t)]); }
      if ((t + 1) % interval_ == 0) {
        layer.growth[t + 1].add(static_cast<double>(cached));
        growth.push_back(cached);
      }
    }
    layer.fractions.push_back(static_cast<double>(cached) / static_cast<double>(length));
    if (static_cast<int64_t>(layer.single.size()) < single_) { layer.single.push_back(std::move(growth)); }
  }

  void report(StatisticsReport& to) const override {
    for (const auto& [name, layer] : layers_) {
      const auto& f = layer.fractions;
      const auto n = static_cast<int64_t>(f.size());
      to.set(name, "kv_fraction", std::accumulate(f.begin(), f.end(), 0.0) / static_cast<double>(n), n);
      to.set(name, "kv_fraction_min", *std::min_element(f.begin(), f.end()), n);
      to.set(name, "kv_fraction_max", *std::max_element(f.begin(), f.end()), n);
      for (size_t s = 0; s < f.size(); ++s) {
        to.add_point("kv_fraction", name, {{"sequence", static_cast<int64_t>(s)}, {"fraction", f[s]}});
      }
      for (const auto& [tokens, cached] : layer.growth) {
        to.add_point("kv_growth", name, {{"tokens", tokens}, {"cached", cached.value()}});
      }
      for (size_t s = 0; s < layer.single.size(); ++s) {
        for (size_t i = 0; i < layer.single[s].size(); ++i) {
          const int64_t tokens = interval_ * static_cast<int64_t>(i + 1);
          to.add_point("kv_growth_single", name,
                       {{"sequence", static_cast<int64_t>(s)}, {"tokens", tokens}, {"cached", layer.single[s][i]}});
        }
      }
      for (const auto& [bin, score] : layer.scores) {
        to.add_point("score_by_position", name,
                     {{"from", bin * interval_}, {"to", (bin + 1) * interval_}, {"score", score.value()}});
      }
    }
  }

  std::vector<StatisticsChart> charts() const override {
    const std::string read = "tokens read", cached = "tokens in the cache";
    return {{"kv_growth", "tokens", "cached", "layer", "Selected tokens", read, cached},
            {"kv_growth_single", "tokens", "cached", "sequence", "Selected tokens of single sequences", read, cached},
            {"score_by_position", "to", "score", "layer", "Score of the router", "position, end of the bin [tokens]",
             "mean score"}};
  }

 private:
  struct Layer {
    std::vector<double> fractions;             // by sequence
    std::map<int64_t, Mean> growth, scores;    // cached tokens by position; scores by bin of positions
    std::vector<std::vector<int64_t>> single;  // cached tokens of the first sequences
  };
  int64_t interval_, single_;
  std::map<std::string, Layer> layers_;
};

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

std::unique_ptr<StatisticsCollector> ham_selection(const StatisticsOptions& options) {
  return std::make_unique<Selection>(options);
}

}  // namespace hebb
