#include <algorithm>

#include "kernels/cuda/common/fast_chunk.h"
#include "kernels/cuda/common/key_select.h"

// Ranks: one block for up to 32 tokens and a codebook; 4 H n D FLOPs a token in exact fp32 (decisions hang on them), bound by shared
// memory at 0.75 loads a multiply-add. They stay in shared memory. Then one warp a token: k rounds of n / 32 comparisons, and the k
// chosen are scored again from differences. Slots: one warp a head of a token, k rounds over the k heads of the sorted pair lists.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokens = 32, kKeys = 64, kChannels = 32;  // a tile of the product
constexpr int64_t kRankBytes = 64 * 1024;                // of a block, if one token needs no more
constexpr int32_t kTaken = INT32_MIN;                    // below all ranks

/// q [., H, 2, D], keys [H, 2, n, D]. A book is token * heads * 2 + head * 2 + codebook.
template <class T>
struct Keys {
  const T* q;
  const float *keys, *norms;  // norms: |key|^2, dot products: null
  int64_t heads, n, half, k;
  float eps;

  __device__ bool is_idw() const { return norms != nullptr; }
  /// Exact score of a sub-key, by one warp.
  __device__ __forceinline__ float score(int64_t book, int64_t i, int lane HEBB_WHERE_PARAMETER) const {
    const T* const query = q + book * half;
    const float* const key = keys + (Split(book, heads * 2).remainder * n + i) * half;
    float sum = 0;
    for (int64_t c = lane; c < half; c += 32) {
      const float x = to_float(query[c]), difference = x - key[c];
      sum += is_idw() ? difference * difference : x * key[c];
    }
    sum = warp_sum(sum HEBB_WHERE_ARGUMENT);
    return is_idw() ? -logf(eps + sum) : sum;
  }
};

struct Norms {
  float* norms;
  const float* keys;
  int64_t half;

  __device__ void operator()(int64_t key, int lane) const {
    float sum = 0;
    for (int64_t c = lane; c < half; c += 32) {
      sum += keys[key * half + c] * keys[key * half + c];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      norms[key] = sum;
    }
  }
};

/// The item of the largest key among the warp's lanes, ties to the lower item, in every lane; items are not negative.
__device__ __forceinline__ int64_t first_of_warp(int32_t key, int32_t item HEBB_WHERE_PARAMETER) {
  int64_t best = static_cast<int64_t>(key) * (int64_t{1} << 32) + (INT32_MAX - item);
  HEBB_UNROLL
  for (int bits = 16; bits > 0; bits /= 2) {
    const int64_t other = __shfl_xor_sync(kAllLanes, best, bits, 32 HEBB_WHERE_ARGUMENT);
    best = other > best ? other : best;
  }
  return INT32_MAX - (best & INT32_MAX);
}

struct Stage {
  float q[kTokens][kChannels + 1], keys[kKeys][kChannels + 1];
};

/// ranks [tokens, stride]: 2 q . key - |key|^2, or q . key, as ordered integers, of the block's tokens and codebook.
template <class T>
__device__ __forceinline__ void rank_keys(int32_t* ranks, int64_t stride, Stage& s, const Keys<T>& in, const FastChunk& chunk,
                                          int64_t first, int64_t tokens, int64_t book HEBB_WHERE_PARAMETER) {
  const int x = static_cast<int>(threadIdx.x % 32), y = static_cast<int>(threadIdx.x / 32);  // keys x + 32 j, tokens y + 8 i
  for (int64_t first_key = 0; first_key < in.n; first_key += kKeys) {
    float sums[4][2] = {};
    for (int64_t first_channel = 0; first_channel < in.half; first_channel += kChannels) {
      const int64_t c = first_channel + x;
      for (int line = y; line < kTokens; line += kWarps) {
        const bool exists = line < tokens && c < in.half;
        s.q[line][x] = exists ? to_float(in.q[(token_of(chunk, first + line) * in.heads * 2 + book) * in.half + c]) : 0.0f;
      }
      for (int line = y; line < kKeys; line += kWarps) {
        const int64_t key = first_key + line;
        s.keys[line][x] = key < in.n && c < in.half ? in.keys[(book * in.n + key) * in.half + c] : 0.0f;
      }
      __syncthreads(HEBB_WHERE_HERE);
      HEBB_UNROLL
      for (int d = 0; d < kChannels; ++d) {
        const float left = s.keys[x][d], right = s.keys[x + 32][d];
        HEBB_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float query = s.q[y + 8 * i][d];
          sums[i][0] += query * left;
          sums[i][1] += query * right;
        }
      }
      __syncthreads(HEBB_WHERE_HERE);
    }
    HEBB_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int64_t token = y + 8 * (i / 2), key = first_key + x + 32 * (i % 2);
      if (token < tokens && key < in.n) {
        const float dot = sums[i / 2][i % 2];
        const int32_t rank = order_key(in.is_idw() ? 2.0f * dot - in.norms[book * in.n + key] : dot);
        ranks[token * stride + key] = rank > kTaken ? rank : kTaken + 1;  // a NaN that is less than everything
      }
    }
  }
}

/// What a lookup writes.
struct Found {
  int32_t *entries, *slots;
  float *scores, *probs, *weights;
};

/// The k entries of one token and codebook, best first, by one warp. ranks: at least max(n, 2 k) words of shared memory.
template <class T>
__device__ __forceinline__ void choose_entries(const Found& out, int32_t* ranks, const Keys<T>& in, int64_t book, bool keep, int lane
                                               HEBB_WHERE_PARAMETER) {
  int32_t* const entries = out.entries + book * in.k;
  for (int64_t j = 0; !keep && j < in.k; ++j) {
    int32_t best = kTaken, at = INT32_MAX;
    for (int64_t i = lane; i < in.n; i += 32) {
      if (ranks[i] > best) {
        best = ranks[i];
        at = static_cast<int32_t>(i);
      }
    }
    const int64_t chosen = first_of_warp(best, at HEBB_WHERE_ARGUMENT);
    if (chosen % 32 == lane) {
      ranks[chosen] = kTaken;
      entries[j] = static_cast<int32_t>(chosen);
    }
  }
  __syncwarp(kAllLanes HEBB_WHERE_ARGUMENT);
  // The ranks' memory takes the chosen: index and exact score.
  auto* const exact = reinterpret_cast<float*>(ranks + in.k);
  for (int64_t j = 0; j < in.k; ++j) {
    const int32_t i = entries[j];
    const float score = in.score(book, i, lane HEBB_WHERE_ARGUMENT);
    if (lane == 0) {
      ranks[j] = i;
      exact[j] = score;
    }
  }
  __syncwarp(kAllLanes HEBB_WHERE_ARGUMENT);
  float top = -INFINITY, total = 0;
  for (int64_t j = lane; j < in.k; j += 32) {
    top = fmaxf(top, exact[j]);
  }
  top = warp_max(top HEBB_WHERE_ARGUMENT);
  for (int64_t j = lane; j < in.k; j += 32) {
    total += expf(exact[j] - top);
  }
  total = warp_sum(total HEBB_WHERE_ARGUMENT);
  for (int64_t j = lane; j < in.k; j += 32) {
    int64_t to = keep ? j : 0;
    for (int64_t i = 0; !keep && i < in.k; ++i) {
      to += is_before({exact[i], ranks[i]}, {exact[j], ranks[j]}) ? 1 : 0;
    }
    entries[to] = ranks[j];
    out.scores[book * in.k + to] = exact[j];
    out.probs[book * in.k + to] = expf(exact[j] - top) / total;
  }
}

/// Grid: tokens of the chunk by `tokens`, codebooks of heads.
template <class T>
__global__ void __launch_bounds__(kThreads) fast_entries_kernel(Found out, Keys<T> in, FastChunk chunk, int64_t all, int64_t tokens,
                                                                int64_t stride, bool keep) {
  HEBB_DYN_SHARED(raw);
  HEBB_SHARED(Stage, stage);
  auto* const ranks = reinterpret_cast<int32_t*>(raw);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tokens, book = blockIdx.y;
  const int64_t here = first + tokens < all ? tokens : all - first;
  if (!keep) {
    rank_keys(ranks, stride, stage, in, chunk, first, here, book);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x / 32; i < here; i += kWarps) {
    choose_entries(out, ranks + i * stride, in, token_of(chunk, first + i) * in.heads * 2 + book, keep,
                   static_cast<int>(threadIdx.x % 32));
  }
}

/// The k best slots over the entries of both codebooks of one head of a token, best first, by one warp. shared: 3 k words.
template <class T>
__device__ __forceinline__ void choose_slots(const Found& out, int32_t* shared, const Keys<T>& in, int64_t head, int lane
                                             HEBB_WHERE_PARAMETER) {
  int32_t *const sorted[2] = {shared, shared + in.k}, *const next = shared + 2 * in.k;
  const int32_t* const entries = out.entries + head * 2 * in.k;
  const float* const scores = out.scores + head * 2 * in.k;
  for (int64_t item = lane; item < 2 * in.k; item += 32) {
    const int64_t codebook = item < in.k ? 0 : 1, base = codebook * in.k;
    int64_t rank = 0;
    for (int64_t i = base; i < base + in.k; ++i) {
      const KeyPair other{scores[i], entries[i]}, own{scores[item], entries[item]};
      rank += is_before(other, own) || (i < item && !is_before(own, other)) ? 1 : 0;
    }
    sorted[codebook][rank] = static_cast<int32_t>(item);
    if (codebook == 0) {
      next[item] = 0;
    }
  }
  __syncwarp(kAllLanes HEBB_WHERE_ARGUMENT);
  for (int64_t j = 0; j < in.k; ++j) {
    int32_t best = kTaken, slot = INT32_MAX;
    int64_t at = -1;
    float best_sum = 0;
    for (int64_t p = lane; p < in.k; p += 32) {
      if (next[p] < in.k) {
        const int32_t a = sorted[0][p], b = sorted[1][next[p]];
        const float sum = scores[a] + scores[b];
        const auto candidate = static_cast<int32_t>(entries[a] * in.n + entries[b]);
        const int32_t key = order_key(sum);
        if (at < 0 || key > best || (key == best && candidate < slot)) {
          best = key;
          slot = candidate;
          best_sum = sum;
          at = p;
        }
      }
    }
    const int64_t chosen = first_of_warp(best, slot HEBB_WHERE_ARGUMENT);
    const bool is_first = at >= 0 && chosen == slot;  // given entries may contain a slot twice
    const unsigned winners = __ballot_sync(kAllLanes, is_first HEBB_WHERE_ARGUMENT);
    if (is_first && lane == __ffs(static_cast<int>(winners)) - 1) {
      out.slots[head * in.k + j] = slot;
      out.weights[head * in.k + j] = best_sum;
      ++next[at];
    }
    __syncwarp(kAllLanes HEBB_WHERE_ARGUMENT);
  }
}

/// Grid: heads of tokens, a warp each.
template <class T>
__global__ void __launch_bounds__(kThreads) fast_slots_kernel(Found out, Keys<T> in, FastChunk chunk, int64_t all) {
  HEBB_DYN_SHARED(raw);
  const int64_t warp = threadIdx.x / 32, item = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (item < all) {
    choose_slots(out, reinterpret_cast<int32_t*>(raw) + warp * 3 * in.k, in, EntryOf(chunk, item, in.heads).entry,
                 static_cast<int>(threadIdx.x % 32));
  }
}

/// Sums of scores of given slots. Row: entry of a token of the chunk.
template <class T>
struct ScoreSlots {
  Found out;
  Keys<T> in;
  FastChunk chunk;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t at = EntryOf(chunk, row, in.heads * in.k).entry, head = Split(at, in.k).quotient;
    const Split slot(out.slots[at], in.n);
    const float sum = in.score(head * 2, slot.quotient, lane) + in.score(head * 2 + 1, slot.remainder, lane);
    if (lane == 0) {
      out.weights[at] = sum;
    }
  }
};

/// One softmax over all entries of a token, in place.
struct WeighSlots {
  float* weights;
  FastChunk chunk;
  int64_t entries;

  __device__ void operator()(int64_t r, int lane) const {
    float* const w = weights + token_of(chunk, r) * entries;
    float top = -INFINITY, total = 0;
    for (int64_t j = lane; j < entries; j += 32) {
      top = fmaxf(top, w[j]);
    }
    top = warp_max(top);
    for (int64_t j = lane; j < entries; j += 32) {
      total += expf(w[j] - top);
    }
    total = warp_sum(total);
    for (int64_t j = lane; j < entries; j += 32) {
      w[j] = expf(w[j] - top) / total;
    }
  }
};

template <class T>
void lookup(Stream& stream, const FastLookupKeys& a) {
  const int64_t heads = a.out.slots.size(1), k = a.out.slots.size(2), n = a.keys.size(2), half = a.keys.size(3), rows = a.chunk.tokens();
  float* const norms = a.score.idw ? a.key_norms.as<float>() : nullptr;
  const Keys<T> in{a.q.as<T>(), a.keys.as<float>(), norms, heads, n, half, k, static_cast<float>(a.score.eps)};
  const Found out{a.out.entries.as<int32_t>(), a.out.slots.as<int32_t>(), a.out.scores.as<float>(), a.out.probs.as<float>(),
                  a.out.weights.as<float>()};
  if (norms != nullptr && !a.keep_entries) {
    each_warp("fast_key_norms", stream, heads * 2 * n, Norms{norms, in.keys, half});
  }
  const int64_t stride = std::max(a.keep_entries ? 0 : n, 2 * k), word = static_cast<int64_t>(sizeof(int32_t));
  const int64_t tokens = std::clamp<int64_t>(kRankBytes / (stride * word), 1, kTokens);
  HEBB_LAUNCH(fast_entries_kernel<T>, dim3(blocks_for(rows, tokens), blocks_for(heads * 2, 1)), kThreads, tokens * stride * word, stream,
              out, in, a.chunk, rows, tokens, stride, a.keep_entries);
  if (a.keep_slots) {
    each_warp("fast_score_slots", stream, rows * heads * k, ScoreSlots<T>{out, in, a.chunk});
  } else {
    const int64_t warps = std::clamp<int64_t>(kRankBytes / (3 * k * word), 1, kWarps);
    HEBB_LAUNCH(fast_slots_kernel<T>, blocks_for(rows * heads, warps), static_cast<unsigned>(32 * warps), warps * 3 * k * word, stream, out,
                in, a.chunk, rows * heads);
  }
  each_warp("fast_weigh_slots", stream, rows, WeighSlots{out.weights, a.chunk, heads * k});
}

}  // namespace

void run(Stream& stream, const FastLookupKeys& a) {
  dispatch_float(a.q.dtype, [&](auto zero) { lookup<decltype(zero)>(stream, a); });
}

}  // namespace hebb::HEBB_DEVICE
