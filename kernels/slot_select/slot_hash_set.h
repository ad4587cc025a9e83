#pragma once
// The selection of product_key/select.h where only the set of slots is wanted, in ascending order: on
// vectors of order-preserving integers, by counting and bisection. About 2,000 cycles for n = 32, k = 64 in
// floats, against 25,000 for sorts whose branches cannot be foreseen. NaNs have places in the order too.
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/common/cpu/vec.h"
#include "kernels/product_key/select.h"

namespace hebb::cpu {

/// Selects slots for one pair of halves after the other; one object per thread.
template <class S> class SlotSet {
 public:
  /// The k slots that select_product_keys chooses, ascending.
  void select(const S* s1, const S* s2, int64_t n, int64_t k, int32_t* slots) {
    count_ = std::min(k, n);
    list(s1, n, k, 0);
    list(s2, n, k, 1);
    candidates(n, k);
    const int64_t taken = take_best(n, k);
    sort(k, taken, slots);
  }

 private:
  using Int = detail::IntOf<S>;
  using Ints = typename Vec<S>::Bits;
  static constexpr int64_t kInts = Vec<S>::width;
  static constexpr Int kLowest = std::numeric_limits<Int>::min();

  static int64_t padded(int64_t n) { return (n + kInts - 1) / kInts * kInts; }
  static Ints load(const Int* p) {
    Ints v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  /// Integers in the order of the numbers; -0 and 0 are equal.
  static Int order_key(S x) {
    const Int bits = std::bit_cast<Int>(x + S(0));
    return bits ^ ((bits >> (8 * sizeof(Int) - 1)) & std::numeric_limits<Int>::max());
  }

  /// Calls f(i, rank) for i < n: how many of keys_[0..n) come before keys_[i] in descending order, equal
  /// ones by index.
  template <class F> void for_ranks(int64_t n, F&& f) const {
    Ints lane;
    for (int i = 0; i < kInts; ++i) { lane[i] = i; }
    const Int* keys = keys_.data();
    for (int64_t block = 0; block < n; block += kInts) {
      const Ints own = load(keys + block);
      Ints rank{};
      const int64_t end = std::min(n, block + kInts);
      for (int64_t j = 0; j < block; ++j) { rank -= keys[j] >= own; }
      for (int64_t j = block; j < end; ++j) {
        rank -= (keys[j] > own) | ((keys[j] == own) & (static_cast<Int>(j - block) < lane));
      }
      for (int64_t j = end; j < n; ++j) { rank -= keys[j] > own; }
      Int ranks[kInts];
      std::memcpy(ranks, &rank, sizeof(rank));
      for (int64_t i = block; i < end; ++i) { f(i, static_cast<int64_t>(ranks[i - block])); }
    }
  }

  /// The best of one half, descending, ties to the lower index.
  void list(const S* s, int64_t n, int64_t k, int half) {
    std::vector<int32_t>& index = index_[half];
    std::vector<S>& score = score_[half];
    if (n > 6 * k) {  // few win: one comparison for most
      top_k(s, n, k, index, score);
      return;
    }
    index.resize(static_cast<size_t>(count_));
    score.resize(static_cast<size_t>(count_));
    keys_.resize(static_cast<size_t>(padded(n)));
    for (int64_t i = 0; i < n; ++i) { keys_[static_cast<size_t>(i)] = order_key(s[i]); }
    for_ranks(n, [&](int64_t i, int64_t rank) {
      if (rank < count_) {
        index[static_cast<size_t>(rank)] = static_cast<int32_t>(i);
        score[static_cast<size_t>(rank)] = s[i];
      }
    });
  }

  /// Candidates of rank p in the first half: ranks (p, q) with (p+1)(q+1) <= k hold the k best sums; a pair
  /// outside can only tie with the last of them (product_key/select.h).
  int64_t width(int64_t p, int64_t k) const { return std::min(count_, k / (p + 1)); }

  /// Fills slots_ and keys_, padded with the lowest key.
  void candidates(int64_t n, int64_t k) {
    const S *score_1 = score_[0].data(), *score_2 = score_[1].data();
    int64_t total = 0;
    for (int64_t p = 0; p < count_; ++p) { total += width(p, k); }
    keys_.assign(static_cast<size_t>(padded(total)), kLowest);
    slots_.resize(static_cast<size_t>(total));
    best_ = best_outside_ = kLowest;
    int64_t at = 0;
    for (int64_t p = 0; p < count_; ++p) {
      const int64_t end = width(p, k);
      const int32_t first = index_[0][static_cast<size_t>(p)] * static_cast<int32_t>(n);
      const int32_t* index_2 = index_[1].data();
      Int* key = keys_.data() + at;
      int32_t* slot = slots_.data() + at;
      for (int64_t q = 0; q < end; ++q) {
        key[q] = order_key(score_1[p] + score_2[q]);
        slot[q] = first + index_2[q];
        best_ = std::max(best_, key[q]);
      }
      if (end < count_) { best_outside_ = std::max(best_outside_, order_key(score_1[p] + score_2[end])); }
      at += end;
    }
  }

  /// How many keys are >= lowest, padding included.
  int64_t count_from(Int lowest) const {
    Ints total{};
    for (size_t i = 0; i < keys_.size(); i += kInts) { total -= load(keys_.data() + i) >= lowest; }
    Int lanes[kInts];
    std::memcpy(lanes, &total, sizeof(total));
    Int sum = 0;
    for (const Int x : lanes) { sum += x; }
    return sum;
  }

  /// Moves the candidates that win to the front of slots_ and those that tie for the last places to ties_;
  /// returns the number of the former.
  int64_t take_best(int64_t n, int64_t k) {
    const S *score_1 = score_[0].data(), *score_2 = score_[1].data();
    // Count(>= low) >= k and count(> high) < k: the k-th best key lies between. The first r^2 >= k pairs
    // are no worse than the pair of ranks r (unless there are infinities or NaNs).
    int64_t r = 1;
    while (r * r < k) { ++r; }
    Int low = order_key(score_1[r - 1] + score_2[r - 1]), high = best_;
    low = low > high || count_from(low) < k ? kLowest : low;
    bool exact = false;
    while (low < high && !exact) {
      using Unsigned = std::make_unsigned_t<Int>;
      const Unsigned span = static_cast<Unsigned>(high) - static_cast<Unsigned>(low);
      const Int middle = static_cast<Int>(static_cast<Unsigned>(low) + span / 2 + (span & 1));
      const int64_t from = count_from(middle);
      exact = from == k && best_outside_ < middle;
      (from >= k ? low : high) = from >= k ? middle : middle - 1;
    }
    if (exact) { return keep(low); }
    ties_.clear();
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (keys_[i] == low) { ties_.push_back(slots_[i]); }
    }
    for (int64_t p = 0; p < count_; ++p) {
      for (int64_t q = width(p, k); q < count_ && order_key(score_1[p] + score_2[q]) == low; ++q) {
        ties_.push_back(
            static_cast<int32_t>(index_[0][static_cast<size_t>(p)] * n + index_[1][static_cast<size_t>(q)]));
      }
    }
    return low < std::numeric_limits<Int>::max() ? keep(low + 1) : 0;
  }

  /// Moves the candidates with keys >= lowest to the front of slots_; returns their number.
  int64_t keep(Int lowest) {
    const Int* keys = keys_.data();
    int32_t* slots = slots_.data();
    int64_t taken = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(slots_.size()); ++i) {
      slots[taken] = slots[i];
      taken += keys[i] >= lowest ? 1 : 0;
    }
    return taken;
  }

  void sort(int64_t k, int64_t taken, int32_t* slots) {
    if (taken < k) {  // lower slots win ties
      std::nth_element(ties_.begin(), ties_.begin() + (k - taken - 1), ties_.end());
      std::copy_n(ties_.begin(), k - taken, slots_.begin() + taken);
    }
    if (k > 16 * kInts) {
      std::copy_n(slots_.begin(), k, slots);
      std::sort(slots, slots + k);
      return;
    }
    keys_.resize(static_cast<size_t>(padded(k)));
    for (int64_t i = 0; i < k; ++i) {
      keys_[static_cast<size_t>(i)] = -static_cast<Int>(slots_[static_cast<size_t>(i)]);
    }
    for_ranks(k, [&](int64_t i, int64_t rank) { slots[rank] = slots_[static_cast<size_t>(i)]; });
  }

  int64_t count_ = 0;  // candidates of each half
  std::vector<int32_t> index_[2];
  std::vector<S> score_[2];
  std::vector<Int> keys_;
  std::vector<int32_t> slots_, ties_;
  Int best_ = kLowest, best_outside_ = kLowest;
};

}  // namespace hebb::cpu
