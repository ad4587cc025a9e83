#pragma once
// The k best pairs of two lists of scores, by one block: in two stages, ties to the lower index at both. By counting: the rank of an
// entry is the number of those before it, so that the result does not depend on the order of the threads.
#include "kernels/cuda/common/prelude.h"

namespace hebb::HEBB_DEVICE {

constexpr int kSelectThreads = 128;

struct KeyPair {
  float sum;
  int32_t slot;  // i1 n + i2
};

/// Shared memory of a block, in the dynamic part.
struct KeySelection {
  float* scores;    // [2, n], filled by the kernel
  KeyPair *best[2]; // [count] of each list, ranked; .slot is the index
  KeyPair* pairs;   // [count^2]
  KeyPair* chosen;  // [k], best first
  int64_t n, k, count;

  __device__ KeySelection(unsigned char* raw, int64_t n, int64_t k) : n(n), k(k), count(k < n ? k : n) {
    auto* next = reinterpret_cast<KeyPair*>(raw);
    best[0] = next;
    best[1] = next + count;
    chosen = next + 2 * count;
    pairs = chosen + k;
    scores = reinterpret_cast<float*>(pairs + count * count);
  }
  static int64_t bytes(int64_t n, int64_t k) {
    const int64_t count = k < n ? k : n;
    return (2 * count + k + count * count) * static_cast<int64_t>(sizeof(KeyPair)) + 2 * n * static_cast<int64_t>(sizeof(float));
  }
};

/// Integers in the order of the numbers; -0 and 0 are equal, NaNs have a place.
__device__ __forceinline__ int32_t order_key(float x) {
  const auto bits = static_cast<int32_t>(__float_as_uint(x + 0.0f));
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

__device__ __forceinline__ bool is_before(const KeyPair& a, const KeyPair& b) {
  const int32_t key_a = order_key(a.sum), key_b = order_key(b.sum);
  return key_a > key_b || (key_a == key_b && a.slot < b.slot);
}

/// From s.scores to s.chosen. All threads call; ends with a barrier.
__device__ inline void select_keys(const KeySelection& s HEBB_WHERE_PARAMETER) {
  HEBB_SHARED(int[2], shared);  // pairs so far, key of the last sum that is chosen
  __syncthreads(HEBB_WHERE_HERE);
  for (int64_t item = threadIdx.x; item < 2 * s.n; item += kSelectThreads) {
    const int64_t book = item / s.n, i = item % s.n;
    const float* const scores = s.scores + book * s.n;
    const KeyPair own{scores[i], static_cast<int32_t>(i)};
    int64_t rank = 0;
    for (int64_t j = 0; j < s.n; ++j) {
      rank += is_before({scores[j], static_cast<int32_t>(j)}, own) ? 1 : 0;
    }
    if (rank < s.count) {
      s.best[book][rank] = own;
    }
  }
  if (threadIdx.x == 0) {
    shared[0] = 0;
  }
  __syncthreads(HEBB_WHERE_HERE);
  const auto add_pairs = [&](auto&& wanted) {
    for (int64_t item = threadIdx.x; item < s.count * s.count; item += kSelectThreads) {
      const int64_t p = item / s.count, q = item % s.count;
      const KeyPair pair{s.best[0][p].sum + s.best[1][q].sum, static_cast<int32_t>(s.best[0][p].slot * s.n + s.best[1][q].slot)};
      if (wanted((p + 1) * (q + 1) <= s.k, pair)) {
        s.pairs[atomicAdd(&shared[0], 1)] = pair;
      }
    }
    __syncthreads(HEBB_WHERE_HERE);
  };
  const auto rank_of = [&](const KeyPair& own, int count) {
    int64_t rank = 0;
    for (int j = 0; j < count; ++j) {
      rank += is_before(s.pairs[j], own) ? 1 : 0;
    }
    return rank;
  };
  // Both lists are sorted, so the sums of ranks (p, q) with (p + 1)(q + 1) <= k hold the k best sums. A pair outside can only tie with
  // the last of them; then its slot decides.
  add_pairs([](bool inside, const KeyPair&) { return inside; });
  const int inside = shared[0];
  for (int i = static_cast<int>(threadIdx.x); i < inside; i += kSelectThreads) {
    if (rank_of(s.pairs[i], inside) == s.k - 1) {
      shared[1] = order_key(s.pairs[i].sum);
    }
  }
  __syncthreads(HEBB_WHERE_HERE);
  const int last = shared[1];
  add_pairs([last](bool is_inside, const KeyPair& pair) { return !is_inside && order_key(pair.sum) == last; });
  const int all = shared[0];
  for (int i = static_cast<int>(threadIdx.x); i < all; i += kSelectThreads) {
    const int64_t rank = rank_of(s.pairs[i], all);
    if (rank < s.k) {
      s.chosen[rank] = s.pairs[i];
    }
  }
  __syncthreads(HEBB_WHERE_HERE);
}

}  // namespace hebb::HEBB_DEVICE
