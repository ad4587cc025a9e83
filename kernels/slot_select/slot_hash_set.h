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

namespace slot_select {
inline constexpr int64_t kGroup = 8;  // heads of tokens that are worked on together
}

/// Selects slots for pairs of halves; one object per thread.
template <class S> class SlotSet {
 public:
  /// For each of `count` pairs, at most kGroup, scores [2, n] one after the other: the k slots that select_product_keys
  /// chooses, ascending.
  void select(const S* scores, int64_t count, int64_t n, int64_t k, int32_t* slots) {
    if (n > k || n * n > kAllPairs) {
      for (int64_t i = 0; i < count; ++i) {
        select_ranked(scores + i * 2 * n, scores + (i * 2 + 1) * n, n, k, slots + i * k);
      }
      return;
    }
    // Where no half loses any: all n * n sums in the order of their slots, by bisection alone.
    for (int64_t i = 0; i < count; ++i) { add_all(scores + i * 2 * n, scores + (i * 2 + 1) * n, n, all_[i]); }
    for (int64_t i = 0; i < count; ++i) { take_of_all(all_[i], n, k, slots + i * k); }
  }

 private:
  /// By ranks in the halves first.
  void select_ranked(const S* s1, const S* s2, int64_t n, int64_t k, int32_t* slots) {
    count_ = std::min(k, n);
    list(s1, n, k, 0);
    list(s2, n, k, 1);
    candidates(n, k);
    const int64_t taken = take_best(n, k);
    sort(k, taken, slots);
  }

  using Int = detail::IntOf<S>;
  using Ints = typename Vec<S>::Bits;
  static constexpr int64_t kInts = Vec<S>::width;
  static constexpr Int kLowest = std::numeric_limits<Int>::min();
  static constexpr int64_t kAllPairs = 256, kWord = 64;

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

  /// Bit i: keys[i] >= lowest.
  static uint64_t bits_from(Ints keys, Int lowest) {
#if defined(HEBB_AVX512)
    if constexpr (sizeof(Int) == 4) {
      return _mm512_cmpge_epi32_mask(reinterpret_cast<__m512i>(keys), _mm512_set1_epi32(lowest));
    } else {
      return _mm512_cmpge_epi64_mask(reinterpret_cast<__m512i>(keys), _mm512_set1_epi64(lowest));
    }
#elif defined(HEBB_AVX2)
    const Ints is_from = keys >= lowest;
    if constexpr (sizeof(Int) == 4) {
      return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(is_from)));
    } else {
      return static_cast<uint32_t>(_mm256_movemask_pd(reinterpret_cast<__m256d>(is_from)));
    }
#else
    uint64_t bits = 0;
    for (int i = 0; i < kInts; ++i) { bits |= uint64_t{keys[i] >= lowest} << i; }
    return bits;
#endif
  }
  /// The same of kWord keys.
  static uint64_t word_from(const Int* keys, Int lowest) {
    uint64_t bits = 0;
    for (int64_t i = 0; i < kWord; i += kInts) { bits |= bits_from(load(keys + i), lowest) << i; }
    return bits;
  }

  static int64_t whole_words(int64_t n) { return (n * n + kWord - 1) / kWord * kWord; }

  /// Keys of all pairs by slot, up to a whole word the lowest.
  static void add_all(const S* s1, const S* s2, int64_t n, Int* all) {
    for (int64_t i = 0; i < n; ++i) {
      const Vec<S> own(s1[i]), zero(S(0));
      vector_loop<S>(n, [&](int64_t j, auto lanes) {
        // Whole vectors: the next row overwrites what lies behind this one. Adding 0 makes -0 0.
        const Ints bits = (own + hebb::cpu::load(s2 + j, lanes) + zero).bits();
        const Ints keys = bits ^ ((bits >> (8 * sizeof(Int) - 1)) & std::numeric_limits<Int>::max());
        std::memcpy(all + i * n + j, &keys, sizeof(keys));
      });
    }
    std::fill(all + n * n, all + whole_words(n), kLowest);
  }

  /// The slots of the k best keys.
  static void take_of_all(const Int* all, int64_t n, int64_t k, int32_t* slots) {
    const int64_t end = whole_words(n);
    Ints top = load(all);
    for (int64_t i = kInts; i < end; i += kInts) {
      const Ints next = load(all + i);
      top = next > top ? next : top;
    }
    Int lanes[kInts];
    std::memcpy(lanes, &top, sizeof(top));
    // Count(>= low) >= k and count(> high) < k: the k-th best key lies between.
    Int low = kLowest, high = *std::max_element(lanes, lanes + kInts);
    uint64_t chosen[kAllPairs / kWord];
    const auto choose = [&](Int lowest) {
      int64_t count = 0;
      for (int64_t i = 0; i < end; i += kWord) {
        chosen[i / kWord] = word_from(all + i, lowest);
        count += std::popcount(chosen[i / kWord]);
      }
      return count;
    };
    int64_t count = 0;
    while (low < high) {
      using Unsigned = std::make_unsigned_t<Int>;
      const Unsigned span = static_cast<Unsigned>(high) - static_cast<Unsigned>(low);
      const Int middle = static_cast<Int>(static_cast<Unsigned>(low) + span / 2 + (span & 1));
      count = choose(middle);
      if (count == k) { break; }
      (count > k ? low : high) = count > k ? middle : middle - 1;
    }
    if (count != k) {  // of those that tie for the last places the first win
      count = low < std::numeric_limits<Int>::max() ? choose(low + 1) : 0;
      if (count == 0) { std::fill(chosen, chosen + end / kWord, 0); }
      for (int64_t i = 0; count < k; ++i) {
        if (all[i] == low) {
          chosen[i / kWord] |= uint64_t{1} << i % kWord;
          ++count;
        }
      }
    }
    for (int64_t i = 0; i < end; i += kWord) {
      for (uint64_t bits = chosen[i / kWord]; bits != 0; bits &= bits - 1) {
        *slots++ = static_cast<int32_t>(i + std::countr_zero(bits));
      }
    }
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
  Int all_[slot_select::kGroup][kAllPairs + kInts];  // keys of all pairs by slot
};

}  // namespace hebb::cpu
