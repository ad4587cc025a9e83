#include "layers/sdm/statistics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/quantile.h"
#include "layers/ops/slot_statistics.h"

namespace hebb {
namespace {

/// How the weights of a token's slots spread, and the use of all slots, over all tokens that were read.
class SlotUseCollector final : public StatisticsCollector {
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

  std::vector<StatisticsChart> charts() const override {
    return {{"cumulative", "slots", "mean", "side", "Weight of the largest slots", "largest slots of a token and head",
             "cumulative weight, 10 % to 90 % shaded", "q10", "q90"}};
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
    const std::string name = m == 0 ? "effective_" + side : fmt::format("cumulative_{}_{:d}", side, m);
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

}  // namespace

std::unique_ptr<StatisticsCollector> slot_use() { return std::make_unique<SlotUseCollector>(); }

}  // namespace hebb
