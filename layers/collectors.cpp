#include "layers/collectors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/mean.h"
#include "layers/layer.h"
#include "layers/ops/slot_statistics.h"

namespace hebb {
namespace {

/// Collision, coverage and kld of complete windows of the tokens read.
class SlotWindows final : public StatisticsCollector {
 public:
  explicit SlotWindows(const StatisticsOptions& o) : window_(o.window_tokens) {}

  void add(const LayerReading& r) override {
    const Inspector::Record& slots = *r.find("slots");  // [1, T, H, k]
    Layer& layer = layers_[r.name];
    const int64_t n = r.config.at("num_subkeys").as_int(), per_token = slots.shape[2] * slots.shape[3];
    for (const int64_t slot : slots.integers) {
      layer.accesses.push_back(static_cast<int32_t>(slot));
      if (static_cast<int64_t>(layer.accesses.size()) == window_ * per_token) {
        layer.close(static_cast<double>(n * n));
      }
    }
  }

  void report(StatisticsReport& to) const override {
    for (const auto& [name, layer] : layers_) {
      for (const auto& [statistic, mean] : {std::pair{"collision", &layer.collision},
                                            std::pair{"coverage", &layer.coverage}, std::pair{"kld", &layer.kld}}) {
        if (mean->n > 0) {
          to.set(name, statistic, mean->value(), mean->n);
        } else {
          to.drop(name, statistic);
        }
      }
    }
  }

 private:
  struct Layer {
    std::vector<int32_t> accesses;
    Mean collision, coverage, kld;

    void close(double table) {
      const SlotCounts counts = count_slots(std::move(accesses), table);
      accesses.clear();
      collision.add(counts.collision);
      coverage.add(counts.coverage);
      kld.add(counts.kld);
    }
  };
  int64_t window_;
  std::map<std::string, Layer> layers_;
};

/// Tokens per slot after a sequence, and slots in use and bytes of the state on the way.
class SlotTokens final : public StatisticsCollector {
 public:
  SlotTokens(std::string record, std::string name) : record_(std::move(record)), name_(std::move(name)) {}

  void add(const LayerReading& r) override {
    const Inspector::Record& slots = *r.find(record_);
    const int64_t length = slots.shape[2];
    for (int64_t head = 0; head < slots.shape[1]; ++head) {
      std::vector<double> counts;
      for (int64_t t = 0; t < length; ++t) {
        const int64_t slot = slots.integers[static_cast<size_t>(head * length + t)];
        if (slot < 0) { continue; }
        counts.resize(std::max(counts.size(), static_cast<size_t>(slot) + 1));
        counts[static_cast<size_t>(slot)] += 1;
      }
      if (!counts.empty()) { layers_[r.name].add(counts); }
    }
  }
  void add_state(const LayerReading& r, int64_t tokens) override {
    Use& use = layers_[r.name].by_position[tokens];
    use.slots.add(static_cast<double>(r.find("slots_in_use")->integers[0]));
    use.bytes = r.layer.state_bytes(tokens);
  }
  bool needs_state() const override { return true; }

  void report(StatisticsReport& to) const override {
    for (const auto& [name, layer] : layers_) {
      if (layer.mean.n > 0) {
        to.set(name, name_ + "_max", layer.largest, layer.mean.n);
        to.set(name, name_ + "_mean", layer.tokens / layer.slots, layer.mean.n);
        to.set(name, name_ + "_entropy", layer.mean.value(), layer.mean.n);
      }
      for (const auto& [tokens, use] : layer.by_position) {
        to.add_point("slots_by_position", name,
                     {{"tokens", tokens}, {"slots", use.slots.value()}, {"bytes", use.bytes}});
      }
    }
  }

  std::vector<StatisticsChart> charts() const override {
    return {{"slots_by_position", "tokens", "slots", "layer", "Slots in use", "tokens read", "slots"}};
  }

 private:
  struct Use {
    Mean slots;
    int64_t bytes = 0;
  };
  struct Layer {
    double largest = 0, tokens = 0, slots = 0;
    Mean mean;  // entropy of the tokens over the slots of a head, over the logarithm of their number
    std::map<int64_t, Use> by_position;

    void add(const std::vector<double>& counts) {
      largest = std::max(largest, *std::max_element(counts.begin(), counts.end()));
      tokens += std::accumulate(counts.begin(), counts.end(), 0.0);
      slots += static_cast<double>(counts.size());
      mean.add(counts.size() > 1 ? entropy(counts) / std::log(static_cast<double>(counts.size())) : 1.0);
    }
  };
  std::string record_, name_;
  std::map<std::string, Layer> layers_;
};

/// Recurrent states: Frobenius norm per head by position.
class StateNorm final : public StatisticsCollector {
 public:
  void add_state(const LayerReading& r, int64_t tokens) override {
    const Inspector::Record& state = *r.find("state");  // [1, H, ...]
    const size_t heads = static_cast<size_t>(state.shape[1]), size = state.reals.size() / heads;
    for (size_t h = 0; h < heads; ++h) {
      double sum = 0;
      for (size_t i = h * size; i < (h + 1) * size; ++i) { sum += state.reals[i] * state.reals[i]; }
      Norm& norm = layers_[r.name][tokens];
      norm.mean.add(std::sqrt(sum));
      norm.largest = std::max(norm.largest, std::sqrt(sum));
    }
  }
  bool needs_state() const override { return true; }

  void report(StatisticsReport& to) const override {
    for (const auto& [name, by_position] : layers_) {
      for (const auto& [tokens, norm] : by_position) {
        to.add_point("state_norm", name, {{"tokens", tokens}, {"norm", norm.mean.value()}, {"largest", norm.largest}});
      }
      const Mean& last = by_position.rbegin()->second.mean;
      to.set(name, "state_norm", last.value(), last.n);
    }
  }

  std::vector<StatisticsChart> charts() const override {
    return {{"state_norm", "tokens", "norm", "layer", "Norm of recurrent states", "tokens read", "norm per head"}};
  }

 private:
  struct Norm {
    Mean mean;  // over heads and sequences
    double largest = 0;
  };
  std::map<std::string, std::map<int64_t, Norm>> layers_;
};

}  // namespace

std::unique_ptr<StatisticsCollector> slot_windows(const StatisticsOptions& options) {
  return std::make_unique<SlotWindows>(options);
}

std::unique_ptr<StatisticsCollector> slot_tokens(std::string record, std::string name) {
  return std::make_unique<SlotTokens>(std::move(record), std::move(name));
}

std::unique_ptr<StatisticsCollector> state_norms() { return std::make_unique<StateNorm>(); }

}  // namespace hebb
