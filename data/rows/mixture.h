#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hebb {

/// Deterministic mixing of sources in fixed proportions (docs/data.md, Mixing): after g rows every
/// source has given g * share / total rows, up to less than the number of sources.
class Mixture {
 public:
  /// weights: positive, one per source.
  explicit Mixture(const std::vector<double>& weights);

  /// Integer shares: max(1, floor(10^6 w_i / sum w + 0.5)).
  const std::vector<int64_t>& shares() const { return shares_; }
  int64_t total() const { return total_; }
  /// Rows taken from each source so far, and their sum: the number of the next global row.
  const std::vector<int64_t>& taken() const { return taken_; }
  int64_t next_row() const { return next_row_; }

  /// Source of global row next_row(): the largest share * (g + 1) - taken * total, ties to the
  /// lowest index; counts it as taken.
  size_t take();
  void restore(std::vector<int64_t> taken);

 private:
  std::vector<int64_t> shares_, taken_;
  int64_t total_ = 0, next_row_ = 0;
};

}  // namespace hebb
