#pragma once
#include <algorithm>
#include <utility>

#include "kernels/common/cpu/vec.h"
#include "kernels/gemm/kernel.h"

/// lane_sum of products (math.h) in vectors: the same 16 lanes and the same tree.
namespace hebb::cpu {

template <class S> class LaneProducts {
 public:
  static constexpr int kParts = 16 / Vec<S>::width;  // vectors of the lanes
  static_assert(kParts * Vec<S>::width == 16);

  LaneProducts() {
    for (Vec<S>& part : parts_) { part = Vec<S>(S(0)); }
  }
  /// Adds a b for n elements, (a, b) = f(i, lanes).
  template <class F> void add(int64_t n, F&& f) {
    constexpr int w = Vec<S>::width;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) { take(p, f(i + p * w, AllLanes{})); }
    }
    int part = 0;
    for (; i + w <= n; i += w) { take(part++, f(i, AllLanes{})); }
    if (i < n) { take(part, f(i, static_cast<int>(n - i))); }
  }
  /// What is left for sum() to add.
  Vec<S> lanes() {
#pragma GCC unroll 4
    for (int half = kParts / 2; half >= 1; half /= 2) {
      for (int p = 0; p < half; ++p) { parts_[p] += parts_[p + half]; }
    }
    return parts_[0];
  }

 private:
  void take(int part, std::pair<Vec<S>, Vec<S>> factors) {
    parts_[part] = fma(factors.first, factors.second, parts_[part]);
  }

  Vec<S> parts_[kParts];
};

/// out[r] = dot(n, x, row r) of `rows` rows of n elements that lie one after the other: a vector of rows at a time,
/// whose lanes are added together.
template <class S> void dot_rows(int64_t n, const S* x, int64_t rows, const S* matrix, S* out) {
  constexpr int w = Vec<S>::width;
  for (int64_t first = 0; first < rows; first += w) {
    const int count = static_cast<int>(std::min<int64_t>(w, rows - first));
    Vec<S> block[w];
    for (int i = 0; i < w; ++i) {
      LaneProducts<S> products;
      const S* row = matrix + (first + i) * n;
      if (i < count) {
        products.add(n, [&](int64_t c, auto lanes) { return std::pair(load(x + c, lanes), load(row + c, lanes)); });
      }
      block[i] = products.lanes();
    }
    gemm::transpose(block);
#pragma GCC unroll 4
    for (int half = w / 2; half >= 1; half /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < half; ++i) { block[i] += block[i + half]; }
    }
    if (count == w) {
      store(out + first, block[0]);
    } else {
      store(out + first, block[0], count);
    }
  }
}

}  // namespace hebb::cpu
