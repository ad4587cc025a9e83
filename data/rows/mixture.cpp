#include "data/rows/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace hebb {

Mixture::Mixture(const std::vector<double>& weights) : taken_(weights.size(), 0) {
  HEBB_ASSERT(!weights.empty());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    HEBB_ASSERT(weight > 0);
    shares_.push_back(std::max<int64_t>(1, static_cast<int64_t>(std::floor(1e6 * weight / sum + 0.5))));
  }
  total_ = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
}

size_t Mixture::take() {
  size_t best = 0;
  int64_t best_debt = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const int64_t debt = shares_[i] * (next_row_ + 1) - taken_[i] * total_;
    if (i == 0 || debt > best_debt) {
      best = i;
      best_debt = debt;
    }
  }
  ++taken_[best];
  ++next_row_;
  return best;
}

void Mixture::restore(std::vector<int64_t> taken) {
  HEBB_ASSERT(taken.size() == shares_.size());
  taken_ = std::move(taken);
  next_row_ = std::accumulate(taken_.begin(), taken_.end(), int64_t{0});
}

}  // namespace hebb
