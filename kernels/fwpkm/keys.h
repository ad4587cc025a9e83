#pragma once
// Sparse sums over keys that the fast product-key kernels share (docs/layers/fwpkm.md, Gradient through updates).
#include <algorithm>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/fwpkm/fwpkm.h"

namespace hebb::cpu {

struct FwpkmSizes {
  int64_t heads, n, half, k;
  int64_t entries() const { return heads * k; }
};

inline FwpkmSizes fwpkm_sizes(const Tensor& slots, const Tensor& keys) {
  return {slots.size(1), keys.size(2), keys.size(3), slots.size(2)};
}

/// f(token) for the tokens of a chunk, in parallel.
template <class F> void each_token(const FastChunk& chunk, F&& f) {
  parallel_each(chunk.tokens(), 8, [&](int64_t r) { f(chunk.token(r)); });
}

template <class S> S fwpkm_score(int64_t half, const S* q, const S* key, const FwpkmScore& score) {
  return score.idw ? -std::log(S(score.eps) + squared_distance(half, q, key)) : dot(half, q, key);
}

/// norms [H, 2, n] = |key|^2.
template <class S> void write_key_norms(const Tensor& norms, const Tensor& keys) {
  const int64_t half = keys.size(3);
  parallel_each(norms.numel(), 64, [&](int64_t i) {
    const S* key = keys.as<S>() + i * half;
    norms.as<S>()[i] = dot(half, key, key);
  });
}

/// Whether a token's lookup counts in the statistics of its chunk.
inline bool counts(const FwpkmPairs& pairs, int64_t token) {
  return !pairs.pairs_only || pairs.targets.as<int32_t>()[token] >= 0;
}

/// to[h, c, index] += scale sum over the chunk's tokens of gamma (q - key) (idw) or gamma q, plus
/// beta along[h, c, index] where beta is given. index [., H, 2, k] < 0: skip. Threads own column
/// slices and take the tokens in order.
template <class S>
void add_to_keys(S* to, const int32_t* index, const S* gamma, const S* beta, const S* along, S scale, const S* q,
                 const S* keys, bool idw, const FwpkmSizes& s, const FastChunk& chunk) {
  constexpr int64_t kSlice = 32;
  const int64_t slices = (s.half + kSlice - 1) / kSlice;
  parallel_each(s.heads * 2 * slices, 1, [&](int64_t task) {
    const int64_t codebook = task / slices, from = task % slices * kSlice, last = std::min(s.half, from + kSlice);
    const S* codebook_keys = keys + codebook * s.n * s.half;
    for (int64_t r = 0; r < chunk.tokens(); ++r) {
      const int64_t at = chunk.token(r) * s.heads * 2 + codebook;
      const S* query = q + at * s.half;
      for (int64_t j = at * s.k; j < (at + 1) * s.k; ++j) {
        if (index[j] < 0) { continue; }
        const int64_t row = index[j] * s.half;
        S* sum = to + codebook * s.n * s.half + row;
        const S g = scale * gamma[j];
        for (int64_t i = from; i < last; ++i) { sum[i] += g * (idw ? query[i] - codebook_keys[row + i] : query[i]); }
        if (beta != nullptr) {
          const S b = scale * beta[j];
          for (int64_t i = from; i < last; ++i) { sum[i] += b * along[codebook * s.n * s.half + row + i]; }
        }
      }
    }
  });
}

/// From d_weights of one token to its scores, summed over the slots that share a sub-key:
/// index [H, 2, k] (-1: unused) and sigma [H, 2, k].
template <class S>
void softmax_to_entries(const S* weights, const S* d_weights, const int32_t* slots, const FwpkmSizes& s, int32_t* index,
                        S* sigma) {
  S mean = 0;
  for (int64_t e = 0; e < s.entries(); ++e) { mean += weights[e] * d_weights[e]; }
  for (int64_t h = 0; h < s.heads; ++h) {
    for (int64_t c = 0; c < 2; ++c) {
      int32_t* found = index + (h * 2 + c) * s.k;
      S* sum = sigma + (h * 2 + c) * s.k;
      int64_t count = 0;
      for (int64_t j = h * s.k; j < (h + 1) * s.k; ++j) {
        const auto key = static_cast<int32_t>(c == 0 ? slots[j] / s.n : slots[j] % s.n);
        const S d = weights[j] * (d_weights[j] - mean);
        const int64_t at = std::find(found, found + count, key) - found;
        if (at == count) {
          found[count] = key;
          sum[count++] = S(0);
        }
        sum[at] += d;
      }
      std::fill(found + count, found + s.k, -1);
      std::fill(sum + count, sum + s.k, S(0));
    }
  }
}

}  // namespace hebb::cpu
