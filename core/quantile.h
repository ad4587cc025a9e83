#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace hebb {

/// The p-quantile of sorted values (at least one), linear between order statistics: position (n - 1) p. Source:
/// docs/evaluations/memories.md.
template <class T> double quantile(const std::vector<T>& sorted, double p) {
  const double at = p * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const double from = sorted[low], to = sorted[std::min(low + 1, sorted.size() - 1)];
  return from + (at - static_cast<double>(low)) * (to - from);
}

}  // namespace hebb
