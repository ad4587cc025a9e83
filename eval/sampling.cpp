#include "eval/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace hebb {
namespace {

/// Ids in order of probability, ties to the lowest id, sorted as far as they are asked for.
class Ranking {
 private:
  auto comes_first() const {
    return [this](int32_t a, int32_t b) {
      const double x = p_[static_cast<size_t>(a)], y = p_[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    };
  }

 public:
  /// Of the `count` most likely ids.
  Ranking(const std::vector<double>& p, size_t count) : p_(p), ids_(p.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
    partition(count);
    ids_.resize(count);
  }
  double p(size_t rank) const { return p_[static_cast<size_t>(ids_[rank])]; }
  size_t sorted() const { return sorted_; }
  void sort_to(size_t rank) {
    partition(rank);
    std::sort(place(sorted_), place(rank), comes_first());
    sorted_ = rank;
  }
  /// Loses those behind the first `count`. Returns the others, lowest id first.
  std::vector<int32_t> lowest_first(size_t count) && {
    ids_.resize(count);
    std::sort(ids_.begin(), ids_.end());
    return std::move(ids_);
  }

 private:
  std::vector<int32_t>::iterator place(size_t rank) { return ids_.begin() + static_cast<int64_t>(rank); }
  void partition(size_t rank) {
    if (rank < ids_.size()) { std::nth_element(place(sorted_), place(rank), ids_.end(), comes_first()); }
  }

  const std::vector<double>& p_;
  std::vector<int32_t> ids_;
  size_t sorted_ = 0;
};

/// How many of the first `count` have probability >= top_p of theirs. Sums are in order of the ranking, which is sorted
/// as far as rounding of other sums decides nothing.
size_t most_likely(Ranking& ranking, size_t count, double top_p) {
  double total = 0, sum = 0;
  for (size_t i = 0; i < count; ++i) { total += ranking.p(i); }
  // Two sums of the same positive numbers differ by less.
  double slack = 2 * static_cast<double>(count) * std::numeric_limits<double>::epsilon() * total;
  const auto sort_to = [&](size_t rank) {
    ranking.sort_to(rank);
    if (rank < count) { return; }
    total = slack = 0;
    for (size_t i = 0; i < count; ++i) { total += ranking.p(i); }
  };
  constexpr size_t kFirst = 64;
  for (size_t needed = 0; needed < count;) {
    if (needed > 0 && sum >= top_p * total + slack) { return needed; }
    if (needed > 0 && slack > 0 && sum >= top_p * total - slack) {
      sort_to(count);
    } else if (needed == ranking.sorted()) {
      sort_to(std::min(count, std::max(kFirst, 4 * needed)));
    } else {
      sum += ranking.p(needed++);
    }
  }
  return count;
}

/// The ids that top_k and top_p leave, lowest first.
std::vector<int32_t> kept_ids(const std::vector<double>& p, const Sampling& sampling) {
  const size_t count = sampling.top_k > 0 ? std::min(p.size(), static_cast<size_t>(sampling.top_k)) : p.size();
  Ranking ranking(p, count);
  const size_t kept = sampling.top_p < 1.0 ? most_likely(ranking, count, sampling.top_p) : count;
  return std::move(ranking).lowest_first(kept);
}

}  // namespace

int32_t sample_token(std::span<const double> logits, const Sampling& sampling, Rng& rng) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature == 0) { return static_cast<int32_t>(largest - logits.begin()); }
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); ++i) { p[i] = std::exp((logits[i] - *largest) / sampling.temperature); }
  const std::vector<int32_t> ids = kept_ids(p, sampling);
  double total = 0;
  for (const int32_t id : ids) { total += p[static_cast<size_t>(id)]; }
  const double target = rng.uniform() * total;
  double sum = 0;
  for (const int32_t id : ids) {
    sum += p[static_cast<size_t>(id)];
    if (target < sum) { return id; }
  }
  return ids.back();
}

}  // namespace hebb
