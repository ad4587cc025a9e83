#include "eval/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace hebb {

int32_t sample_token(std::span<const double> logits, const Sampling& sampling, Rng& rng) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature == 0) { return static_cast<int32_t>(largest - logits.begin()); }
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); ++i) { p[i] = std::exp((logits[i] - *largest) / sampling.temperature); }
  std::vector<int32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  size_t kept = order.size();
  if (sampling.top_k > 0 || sampling.top_p < 1.0) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)]; });
    if (sampling.top_k > 0) { kept = std::min(kept, static_cast<size_t>(sampling.top_k)); }
    if (sampling.top_p < 1.0) {
      double total = 0, sum = 0;
      for (size_t i = 0; i < kept; ++i) { total += p[static_cast<size_t>(order[i])]; }
      size_t needed = 0;
      while (needed < kept && (needed == 0 || sum < sampling.top_p * total)) {
        sum += p[static_cast<size_t>(order[needed++])];
      }
      kept = needed;
    }
    order.resize(kept);
    std::sort(order.begin(), order.end());
  }
  double total = 0;
  for (const int32_t id : order) { total += p[static_cast<size_t>(id)]; }
  const double target = rng.uniform() * total;
  double sum = 0;
  for (const int32_t id : order) {
    sum += p[static_cast<size_t>(id)];
    if (target < sum) { return id; }
  }
  return order.back();
}

}  // namespace hebb
