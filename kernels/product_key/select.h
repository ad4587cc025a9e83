#pragma once
// Selection of the best pairs of two codebooks (docs/layers/pkm.md and sdm.md, Selection): in two
// stages, ties to the lower index at both.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace hebb::cpu {

/// Working memory of one thread.
template <class S> struct ProductKeyWork {
  std::vector<int32_t> index[2];
  std::vector<S> score[2];
  std::vector<std::pair<S, int32_t>> best;
};

/// The k largest of s[0..n), descending; equal scores: lower index first. Returns min(k, n).
/// A scan with a sorted buffer: most candidates fail the comparison with its last entry.
template <class S> int64_t top_k(const S* s, int64_t n, int64_t k, std::vector<int32_t>& index, std::vector<S>& score) {
  const int64_t count = std::min(k, n);
  index.resize(static_cast<size_t>(count));
  score.resize(static_cast<size_t>(count));
  int64_t filled = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (filled == count && !(s[i] > score[static_cast<size_t>(count - 1)])) { continue; }
    int64_t at = filled < count ? filled++ : count - 1;
    while (at > 0 && s[i] > score[static_cast<size_t>(at - 1)]) {
      score[static_cast<size_t>(at)] = score[static_cast<size_t>(at - 1)];
      index[static_cast<size_t>(at)] = index[static_cast<size_t>(at - 1)];
      --at;
    }
    score[static_cast<size_t>(at)] = s[i];
    index[static_cast<size_t>(at)] = static_cast<int32_t>(i);
  }
  return count;
}

/// The k largest sums s1[i] + s2[j] over the stage-one candidates of both halves, as slots i n + j
/// with their sums, best first; equal sums: lower slot first. k <= n * n.
template <class S>
void select_product_keys(const S* s1, const S* s2, int64_t n, int64_t k, ProductKeyWork<S>& work, int32_t* slots,
                         S* sums) {
  const int64_t count = top_k(s1, n, k, work.index[0], work.score[0]);
  top_k(s2, n, k, work.index[1], work.score[1]);
  const S *score_1 = work.score[0].data(), *score_2 = work.score[1].data();
  const int32_t *index_1 = work.index[0].data(), *index_2 = work.index[1].data();
  const auto pair = [&](int64_t p, int64_t q) {
    return std::pair<S, int32_t>(score_1[p] + score_2[q], static_cast<int32_t>(index_1[p] * n + index_2[q]));
  };
  // A total order of NaNs too (best, so that they show): the algorithms below leave their arrays without one.
  const auto better = [](const std::pair<S, int32_t>& a, const std::pair<S, int32_t>& b) {
    const bool a_nan = std::isnan(a.first), b_nan = std::isnan(b.first);
    if (a_nan != b_nan) { return a_nan; }
    return a_nan || a.first == b.first ? a.second < b.second : a.first > b.first;
  };
  // Both lists are sorted, so the sums of ranks (p, q) with (p+1)(q+1) <= k hold the k best sums. A
  // pair outside can only tie with the last of them; then its slot number decides.
  work.best.clear();
  for (int64_t p = 0; p < count; ++p) {
    for (int64_t q = 0; q < std::min(count, k / (p + 1)); ++q) { work.best.push_back(pair(p, q)); }
  }
  std::nth_element(work.best.begin(), work.best.begin() + (k - 1), work.best.end(), better);
  const S last = work.best[static_cast<size_t>(k - 1)].first;
  for (int64_t p = 0; p < count; ++p) {
    for (int64_t q = std::min(count, k / (p + 1)); q < count && score_1[p] + score_2[q] == last; ++q) {
      work.best.push_back(pair(p, q));
    }
  }
  std::partial_sort(work.best.begin(), work.best.begin() + k, work.best.end(), better);
  for (int64_t j = 0; j < k; ++j) {
    slots[j] = work.best[static_cast<size_t>(j)].second;
    sums[j] = work.best[static_cast<size_t>(j)].first;
  }
}

}  // namespace hebb::cpu
