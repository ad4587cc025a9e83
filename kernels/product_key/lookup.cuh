#pragma once
// Lookups of product keys that fast memories and product-key layers share.
#include "kernels/fwpkm/fast_chunk.cuh"
#include "kernels/product_key/scratch.h"
#include "kernels/product_key/select.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int32_t kTaken = INT32_MIN;  // below all ranks

/// q [., H, 2, D], keys [H, 2, n, D]. A half query is token * heads * 2 + head * 2 + codebook.
template <class T> struct LookupKeys {
  const T* q;
  const float *keys, *norms;  // norms: |key|^2, dot products: null
  int64_t heads, n, half, k;
  float eps;

  __device__ bool is_idw() const { return norms != nullptr; }
  /// From q . key of a row of keys.
  __device__ __forceinline__ int32_t rank(float dot, int64_t row) const {
    const int32_t key = order_key(is_idw() ? 2.0f * dot - norms[row] : dot);
    return key > kTaken ? key : kTaken + 1;  // a NaN that is less than everything
  }
  /// Exact score of a sub-key, by one warp.
  __device__ __forceinline__ float score(int64_t half_query, int64_t i, int lane) const {
    const T* const query = q + half_query * half;
    const float* const key = keys + (Split(half_query, heads * 2).remainder * n + i) * half;
    float sum = 0;
    for (int64_t c = lane; c < half; c += 32) {
      const float x = to_float(query[c]), difference = x - key[c];
      sum += is_idw() ? difference * difference : x * key[c];
    }
    sum = warp_sum(sum);
    return is_idw() ? -logf(eps + sum) : sum;
  }
};

/// What a lookup writes.
struct Found {
  int32_t *entries, *slots;
  float *scores, *probs, *weights;  // probs null: not wanted
};

/// Entries, scores and probs of a chunk's tokens, on tensor cores (ranks.cuh), where product_key_cores() takes them.
void find_entries_mma(Stream& stream, const Found& out, const LookupKeys<bf16>& in, const FastChunk& chunk);

/// slots, and sums of scores in weights, from entries and scores of a chunk's tokens: n sub-keys, k slots per head.
void find_slots(Stream& stream, const Found& out, int64_t n, int64_t k, int64_t heads, const FastChunk& chunk);

}  // namespace hebb::HEBB_DEVICE
