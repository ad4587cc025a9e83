#include "train/memory_statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/mean.h"
#include "core/quantile.h"
#include "layers/ops/slot_statistics.h"

namespace hebb {
namespace {

Json point(const std::string& layer, std::vector<Json::Member> members) {
  members.insert(members.begin(), {"layer", layer});
  return Json::object(std::move(members));
}

/// fwpkm, pkm: collision, coverage and kld of complete windows of the tokens read.
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

/// sdm: how the weights of a token's slots spread, and the use of all slots, over all tokens that were read.
class SlotUse final : public StatisticsCollector {
 public:
  void add(const LayerReading& r) override {
    for (const char* side : {"read", "write"}) {
      const Inspector::Record &slots = *r.find(std::string(side) + "_slots"),
                              &weights = *r.find(std::string(side) + "_weights");
      layers_[r.name][side].add(slots, weights, r.config.at("slots_per_head").as_int());
    }
  }

  void report(StatisticsReport& to) const override {
    for (const char* side : {"read", "write"}) {
      std::map<int64_t, std::vector<double>> pooled;  // 0: effective
      for (const auto& [name, sides] : layers_) {
        const Side& s = sides.at(side);
        const auto set = [&, &layer = name](const std::string& what, double value, int64_t n) {
          to.set(layer, what + side, value, n);
        };
        set("unique_",
            static_cast<double>(
                std::count_if(s.by_slot.begin(), s.by_slot.end(), [](const Slot& x) { return x.used; })) /
                static_cast<double>(s.by_slot.size()),
            s.tokens);
        set("entropy_", s.entropy(), s.tokens);
        for (const auto& [m, values] : s.shares) {
          spread(values, side, m, [&, &layer = name](const std::string& what, double value, int64_t n) {
            to.set(layer, what, value, n);
          });
          pooled[m].insert(pooled[m].end(), values.begin(), values.end());
        }
      }
      for (auto& [m, values] : pooled) {
        const std::map<std::string, double> all =
            spread(values, side, m,
                   [&](const std::string& what, double value, int64_t n) { to.set_all("sdm", what, value, n); });
        if (m > 0) {
          Json p = Json::object({{"side", side}, {"slots", m}});
          for (const auto& [what, value] : all) { p.set(what, value); }
          to.add_point("cumulative", p);
        }
      }
    }
  }

 private:
  struct Slot {
    double mass = 0;
    bool used = false;
  };
  struct Side {
    std::vector<Slot> by_slot;  // of all heads
    std::map<int64_t, std::vector<double>>
        shares;  // 0: exp(entropy)/k; m: mass of the m largest weights; by token and head
    int64_t tokens = 0;

    void add(const Inspector::Record& slots, const Inspector::Record& weights, int64_t slots_per_head) {
      const auto heads = static_cast<size_t>(slots.shape[2]), k = static_cast<size_t>(slots.shape[3]);
      by_slot.resize(heads * static_cast<size_t>(slots_per_head));
      std::vector<double> mass(k);
      for (size_t i = 0; i < slots.integers.size() / k; ++i) {
        for (size_t j = 0; j < k; ++j) {
          Slot& slot = by_slot[(i % heads) * static_cast<size_t>(slots_per_head) +
                               static_cast<size_t>(slots.integers[i * k + j])];
          mass[j] = std::abs(weights.reals[i * k + j]);
          slot.mass += mass[j];
          slot.used = true;
        }
        add_shares(mass);
      }
      tokens += slots.shape[1];
    }

    void add_shares(std::vector<double>& mass) {
      shares[0].push_back(std::exp(hebb::entropy(mass)) / static_cast<double>(mass.size()));
      std::sort(mass.begin(), mass.end(), std::greater<>());
      const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
      double sum = 0;
      for (size_t m = 1; m <= mass.size(); ++m) {
        sum += mass[m - 1];
        if ((m & (m - 1)) == 0 || m == mass.size()) {
          shares[static_cast<int64_t>(m)].push_back(total > 0 ? sum / total : 0.0);
        }
      }
    }

    double entropy() const {
      std::vector<double> mass;
      for (const Slot& s : by_slot) { mass.push_back(s.mass); }
      return mass.size() > 1 ? hebb::entropy(mass) / std::log(static_cast<double>(mass.size())) : 0.0;
    }
  };

  /// Mean, median, 10 % and 90 % quantiles of "effective_SIDE" (m = 0) or "cumulative_SIDE_M"; returns them by short
  /// names.
  template <class F>
  static std::map<std::string, double> spread(std::vector<double> values, const std::string& side, int64_t m, F&& set) {
    const std::string name = m == 0 ? "effective_" + side : "cumulative_" + side + "_" + std::to_string(m);
    const auto n = static_cast<int64_t>(values.size());
    std::sort(values.begin(), values.end());
    const std::map<std::string, double> found{
        {"mean", std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n)},
        {"median", quantile(values, 0.5)},
        {"q10", quantile(values, 0.1)},
        {"q90", quantile(values, 0.9)}};
    for (const auto& [what, value] : found) { set(what == "mean" ? name : name + "_" + what, value, n); }
    return found;
  }

  std::map<std::string, std::map<std::string, Side>> layers_;
};

/// ham: which tokens were selected.
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
        to.add_point("kv_fraction", point(name, {{"sequence", static_cast<int64_t>(s)}, {"fraction", f[s]}}));
      }
      for (const auto& [tokens, cached] : layer.growth) {
        to.add_point("kv_growth", point(name, {{"tokens", tokens}, {"cached", cached.value()}}));
      }
      for (size_t s = 0; s < layer.single.size(); ++s) {
        for (size_t i = 0; i < layer.single[s].size(); ++i) {
          const int64_t tokens = interval_ * static_cast<int64_t>(i + 1);
          to.add_point(
              "kv_growth_single",
              point(name, {{"sequence", static_cast<int64_t>(s)}, {"tokens", tokens}, {"cached", layer.single[s][i]}}));
        }
      }
      for (const auto& [bin, score] : layer.scores) {
        to.add_point("score_by_position",
                     point(name, {{"from", bin * interval_}, {"to", (bin + 1) * interval_}, {"score", score.value()}}));
      }
    }
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

/// ovq, kvm: tokens per slot after a sequence, and slots in use and bytes of the state on the way.
class SlotTokens final : public StatisticsCollector {
 public:
  /// `record`: the slot of each token [1, K, T], negative for tokens in none.
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
        to.add_point("slots_by_position",
                     point(name, {{"tokens", tokens}, {"slots", use.slots.value()}, {"bytes", use.bytes}}));
      }
    }
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
        to.add_point("state_norm",
                     point(name, {{"tokens", tokens}, {"norm", norm.mean.value()}, {"largest", norm.largest}}));
      }
      const Mean& last = by_position.rbegin()->second.mean;
      to.set(name, "state_norm", last.value(), last.n);
    }
  }

 private:
  struct Norm {
    Mean mean;  // over heads and sequences
    double largest = 0;
  };
  std::map<std::string, std::map<int64_t, Norm>> layers_;
};

using Collectors = std::vector<std::unique_ptr<StatisticsCollector>>;

template <class... T> Collectors collectors(std::unique_ptr<T>... one) {
  Collectors list;
  (list.push_back(std::move(one)), ...);
  return list;
}

}  // namespace

void StatisticsReport::set(const std::string& layer, const std::string& name, double value, int64_t n) {
  layers_[layer][name] = {value, n};
}

void StatisticsReport::set_all(const std::string& type, const std::string& name, double value, int64_t n) {
  all_[type][name] = {value, n};
}

void StatisticsReport::add_point(const std::string& series, Json point) {
  series_.try_emplace(series, Json::array()).first->second.push(std::move(point));
}

Json StatisticsReport::Number::json() const { return Json::object({{"value", value}, {"n", n}}); }

Json StatisticsReport::groups() const {
  Json groups = Json::object();
  for (const auto& [layer, numbers] : layers_) {
    Json& group = groups.set(layer, Json::object());
    for (const auto& [name, number] : numbers) { group.set(name, number.json()); }
  }
  return groups;
}

Json StatisticsReport::metrics(const std::map<std::string, std::string>& types) const {
  std::map<std::string, std::map<std::string, Mean>> means;
  for (const auto& [layer, numbers] : layers_) {
    for (const auto& [name, number] : numbers) { means[types.at(layer)][name].add(number.value); }
  }
  Json metrics = Json::object();
  for (const auto& [type, numbers] : means) {
    for (const auto& [name, mean] : numbers) { metrics.set(type + "." + name, Number{mean.value(), mean.n}.json()); }
  }
  for (const auto& [type, numbers] : all_) {
    for (const auto& [name, number] : numbers) { metrics.set(type + "." + name, number.json()); }
  }
  return metrics;
}

Json StatisticsReport::series() const {
  Json series = Json::object();
  for (const auto& [name, points] : series_) { series.set(name, points); }
  return series;
}

Collectors statistics_collectors(const std::string& type, const StatisticsOptions& o) {
  static const std::map<std::string, std::function<Collectors(const StatisticsOptions&)>> kinds = {
      {"fwpkm", [](const auto& s) { return collectors(std::make_unique<SlotWindows>(s)); }},
      {"pkm", [](const auto& s) { return collectors(std::make_unique<SlotWindows>(s)); }},
      {"sdm", [](const auto&) { return collectors(std::make_unique<SlotUse>(), std::make_unique<StateNorm>()); }},
      {"ham", [](const auto& s) { return collectors(std::make_unique<Selection>(s), std::make_unique<StateNorm>()); }},
      {"ovq", [](const auto&) { return collectors(std::make_unique<SlotTokens>("assign", "centroid_tokens")); }},
      {"kvm", [](const auto&) { return collectors(std::make_unique<SlotTokens>("row", "row_tokens")); }},
      {"gdn", [](const auto&) { return collectors(std::make_unique<StateNorm>()); }},
  };
  const auto it = kinds.find(type);
  return it == kinds.end() ? Collectors{} : it->second(o);
}

}  // namespace hebb
