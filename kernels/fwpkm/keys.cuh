#pragma once
// Product keys of fast memories: their entries' weights, and sums over the readers of keys, which two kernels share.
#include "kernels/fwpkm/key_lists.cuh"

namespace hebb::HEBB_DEVICE {

constexpr float kUsageEps = 1e-8f;

/// q [., H, 2, D], keys [H, 2, n, D]. A half query is token * heads * 2 + head * 2 + codebook. An entry is
/// half_query * k + j.
template <class T> struct Keys {
  const T* q;
  const float* keys;                // of the first chunk
  int64_t heads, n, half, k, copy;  // copy: from one chunk's keys to the next one's; 0: they share them
  float eps;
  bool is_idw;
  FastChunks chunks;

  __device__ int64_t codebooks() const { return heads * 2; }
  /// Number of the half query in row `row` of those of the chunks' tokens.
  __device__ int64_t half_query(int64_t row) const { return EntryOf(chunks.all, row, codebooks()).entry; }
  /// The first key of a half query's codebook, as a row of one chunk's keys.
  __device__ int64_t first_key(int64_t half_query) const { return Split(half_query, codebooks()).remainder * n; }
  /// The keys [n, D] of a half query's codebook.
  __device__ const float* keys_of(int64_t half_query) const {
    const Split at(half_query, codebooks());
    return keys + at.remainder * n * half + (copy > 0 ? chunk_of(chunks, at.quotient) * copy : 0);
  }
};

/// c_i of docs/layers/fwpkm.md, Gradient through updates.
__device__ __forceinline__ float pull(float m) { return logf(m + kUsageEps) + m / (m + kUsageEps); }

/// b of an entry from its score: 2 / (eps + |u|^2), and 1 for dot products.
__device__ __forceinline__ float slope(float score, bool is_idw) { return is_idw ? 2.0f * expf(score) : 1.0f; }

/// Sums over the lists of a row's readers that belong together: gamma (q - key) or gamma q of each entry, plus beta
/// along.
struct KeyPart {
  KeyLists lists;
  const float *gamma, *beta;  // beta null: none
};
/// to = base (null: 0) + scale part, for `count` parts one after the other; norms = |to|^2 (null: not wanted).
struct KeySums {
  float *to, *norms;
  const float *base, *along;
  float scale;
  int count;
  KeyPart parts[2];
};

constexpr int kPieces = kEachThreads / 32, kSumChannels = 128;

/// The piece of a list that a warp sums.
struct KeyPiece {
  int64_t first, last;

  __device__ KeyPiece(const KeyLists& lists, int64_t row, int piece) {
    const int32_t* const starts = lists.start(row);
    const int64_t begin = starts[0], end = starts[1], share = (end - begin + kPieces - 1) / kPieces;
    first = begin + piece * share;
    last = first + share < end ? first + share : end;
  }
};

struct KeySumStage {
  float sums[kPieces][kSumChannels], along[kPieces];
};

/// What a part adds to channel `channels` + thread of a row of keys, for the first kSumChannels threads; all threads
/// call. Ends with a barrier.
template <class T>
__device__ __forceinline__ float sum_part(KeySumStage& s, const KeySums& a, const KeyPart& part, const Keys<T>& in,
                                          int64_t row, int64_t channels) {
  const int lane = static_cast<int>(threadIdx.x % 32), piece = static_cast<int>(threadIdx.x / 32),
            thread = static_cast<int>(threadIdx.x);
  const KeyPiece own(part.lists, row, piece);
  float keys[kSumChannels / 32], sums[kSumChannels / 32] = {}, weight = 0;
  HEBB_UNROLL
  for (int u = 0; u < kSumChannels / 32; ++u) {
    const int64_t c = channels + 32 * u + lane;
    keys[u] = c < in.half && in.is_idw ? in.keys[row * in.half + c] : 0.0f;
  }
  for (int64_t i = own.first; i < own.last; ++i) {
    const int64_t g = part.lists.entry(i);
    const T* const query = in.q + Split(g, in.k).quotient * in.half;
    const float gamma = part.gamma[g];
    HEBB_UNROLL
    for (int u = 0; u < kSumChannels / 32; ++u) {
      const int64_t c = channels + 32 * u + lane;
      sums[u] += c < in.half ? gamma * (to_float(query[c]) - keys[u]) : 0.0f;
    }
    weight += part.beta != nullptr ? part.beta[g] : 0.0f;
  }
  HEBB_UNROLL
  for (int u = 0; u < kSumChannels / 32; ++u) { s.sums[piece][32 * u + lane] = sums[u]; }
  if (lane == 0) { s.along[piece] = weight; }
  __syncthreads();
  float total = 0, weights = 0;
  const int64_t c = channels + thread;
  if (thread < kSumChannels && c < in.half) {
    HEBB_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      total += s.sums[p][thread];
      weights += s.along[p];
    }
    total += part.beta != nullptr ? weights * a.along[row * in.half + c] : 0.0f;
  }
  __syncthreads();
  return total;
}

struct NothingBefore {
  template <class T> __device__ void operator()(const KeyLists&, const KeyPiece&, const Keys<T>&, int64_t, int) const {}
};

// Grid: rows of keys. before: what a warp does with its piece of the first list; it may write that piece's gamma.
template <class T, class Before>
__global__ void __launch_bounds__(kEachThreads) key_sums_kernel(KeySums a, Keys<T> in, Before before) {
  HEBB_SHARED(KeySumStage, s);
  const int lane = static_cast<int>(threadIdx.x % 32), piece = static_cast<int>(threadIdx.x / 32),
            thread = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  before(a.parts[0].lists, KeyPiece(a.parts[0].lists, row, piece), in, row, lane);
  for (int64_t channels = 0; channels < in.half; channels += kSumChannels) {
    const int64_t c = channels + thread;
    const bool is_mine = thread < kSumChannels && c < in.half;
    float value = is_mine && a.base != nullptr ? a.base[row * in.half + c] : 0.0f;
    HEBB_UNROLL
    for (int p = 0; p < 2; ++p) {
      if (p < a.count) { value += a.scale * sum_part(s, a, a.parts[p], in, row, channels); }
    }
    if (is_mine) { a.to[row * in.half + c] = value; }
  }
  if (a.norms != nullptr) {
    __syncthreads();
    float sum = 0;
    for (int64_t c = lane; piece == 0 && c < in.half; c += 32) {
      sum += a.to[row * in.half + c] * a.to[row * in.half + c];
    }
    sum = warp_sum(sum);
    if (thread == 0) { a.norms[row] = sum; }
  }
}

template <class T, class Before>
void add_to_keys(Stream& stream, const KeySums& a, const Keys<T>& in, const Before& before) {
  HEBB_LAUNCH((key_sums_kernel<T, Before>), blocks_for(in.heads * 2 * in.n, 1), kEachThreads, 0, stream, a, in, before);
}

/// From d_weights to the scores, at the first of the slots that share a sub-key; -1 at the others and for tokens
/// without a pair (targets null: all tokens). Row: head of a token of the chunk.
template <class T> struct ToEntries {
  int32_t* index;
  float* sigma;
  const float *weights, *d_weights;
  const int32_t *slots, *targets;
  Keys<T> in;

  __device__ void operator()(int64_t row, int lane) const {
    const auto [token, head] = EntryOf(in.chunks.all, row, in.heads);
    const int64_t entries = in.heads * in.k, first = head * in.k;
    const bool counts = targets == nullptr || targets[token] >= 0;
    float mean = 0;
    for (int64_t g = token * entries + lane; counts && g < (token + 1) * entries; g += 32) {
      mean += weights[g] * d_weights[g];
    }
    mean = warp_sum(mean);
    for (int64_t item = lane; item < 2 * in.k; item += 32) {
      const int64_t codebook = item < in.k ? 0 : 1, j = item - codebook * in.k;
      const auto key_of = [&](int64_t i) {
        const Split slot(slots[first + i], in.n);
        return codebook == 0 ? slot.quotient : slot.remainder;
      };
      const int64_t own = key_of(j);
      bool is_first = counts;
      for (int64_t i = 0; i < j && is_first; ++i) { is_first = key_of(i) != own; }
      float sum = 0;
      for (int64_t i = j; i < in.k && is_first; ++i) {
        sum += key_of(i) == own ? weights[first + i] * (d_weights[first + i] - mean) : 0.0f;
      }
      index[(head * 2 + codebook) * in.k + j] = is_first ? static_cast<int32_t>(own) : -1;
      sigma[(head * 2 + codebook) * in.k + j] = sum;
    }
  }
};

/// sigma -> sigma b, b = 2 / (eps + |q - key|^2) from the differences. Row: entry of a half query of the chunks.
template <class T> struct ScaleScores {
  float* sigma;
  const int32_t* index;
  Keys<T> in;

  __device__ void operator()(int64_t row, int lane) const {
    const Split place(row, in.k);
    const int64_t half_query = in.half_query(place.quotient), g = half_query * in.k + place.remainder;
    if (index[g] < 0) { return; }
    const float* const key = in.keys_of(half_query) + index[g] * in.half;
    float sum = 0;
    for (int64_t c = lane; c < in.half; c += 32) {
      const float difference = to_float(in.q[half_query * in.half + c]) - key[c];
      sum += difference * difference;
    }
    sum = warp_sum(sum);
    if (lane == 0) { sigma[g] *= 2.0f / (in.eps + sum); }
  }
};

}  // namespace hebb::HEBB_DEVICE
