#include "layers/sdm/op_statistics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "core/quantile.h"
#include "core/stream.h"
#include "layers/ops/host_values.h"
#include "layers/ops/slot_statistics.h"

namespace hebb {
namespace {

void gate_statistics(std::map<std::string, double>& out, const std::string& gate, const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  out[gate + "_min"] = *low;
  out[gate + "_mean"] = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  out[gate + "_max"] = *high;
}

void use_statistics(Stream& stream, std::map<std::string, double>& out, int64_t slots_per_head, const SlotUse& use,
                    const std::string& side) {
  const size_t heads = static_cast<size_t>(use.slots.size(1)), k = static_cast<size_t>(use.slots.size(2));
  std::vector<int32_t> slots = host_integers(stream, use.slots);
  const std::vector<double> weights = host_values(stream, use.weights);
  const size_t choices = weights.size() / k;  // tokens times heads
  std::vector<double> by_slot(heads * static_cast<size_t>(slots_per_head)), cumulative(k), effective;
  std::vector<bool> used(by_slot.size());
  std::vector<double> mass(k);
  for (size_t i = 0; i < choices; ++i) {
    for (size_t j = 0; j < k; ++j) {
      const size_t slot = (i % heads) * static_cast<size_t>(slots_per_head) + static_cast<size_t>(slots[i * k + j]);
      mass[j] = std::abs(weights[i * k + j]);
      by_slot[slot] += mass[j];
      used[slot] = true;
    }
    effective.push_back(std::exp(entropy(mass)) / static_cast<double>(k));
    std::sort(mass.begin(), mass.end(), std::greater<>());
    const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
    double sum = 0;
    for (size_t j = 0; j < k && total > 0; ++j) {
      sum += mass[j];
      cumulative[j] += sum / total / static_cast<double>(choices);
    }
  }
  out["unique_" + side] =
      static_cast<double>(std::count(used.begin(), used.end(), true)) / static_cast<double>(used.size());
  out["entropy_" + side] = by_slot.size() > 1 ? entropy(by_slot) / std::log(static_cast<double>(by_slot.size())) : 0.0;
  out["effective_" + side] = std::accumulate(effective.begin(), effective.end(), 0.0) / static_cast<double>(choices);
  std::sort(effective.begin(), effective.end());
  out["effective_" + side + "_q10"] = quantile(effective, 0.1);
  out["effective_" + side + "_median"] = quantile(effective, 0.5);
  out["effective_" + side + "_q90"] = quantile(effective, 0.9);
  for (size_t m = 1; m <= k; m *= 4) { out[fmt::format("cumulative_{}_{:d}", side, m)] = cumulative[m - 1]; }
}

}  // namespace

void sparse_delta_statistics(Stream& stream, std::map<std::string, double>& out, int64_t slots_per_head,
                             const SlotUse& write, const SlotUse& read, const Tensor& g, const Tensor& beta) {
  std::vector<double> alpha = host_values(stream, g);
  for (double& x : alpha) { x = std::exp(x); }
  gate_statistics(out, "forget", alpha);
  gate_statistics(out, "input", host_values(stream, beta));
  use_statistics(stream, out, slots_per_head, read, "read");
  use_statistics(stream, out, slots_per_head, write, "write");
}

}  // namespace hebb
