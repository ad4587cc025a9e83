#include <algorithm>

#include "kernels/product_key/ranks.cuh"

// Entries: one block ranks all sub-keys of a codebook for some tokens (ranks.cuh); the ranks stay in shared memory.
// Then one warp a token: k rounds of n / 32 comparisons, and the k chosen are scored again from differences; about
// 1,600 instructions a warp at n = 512, k = 8. Slots: one warp a head of a token,
// k rounds over the k heads of the sorted pair lists.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kRankBytes = 64 * 1024;   // of a block, if one token needs no more
constexpr int64_t kStageBytes = 38 * 1024;  // of shared memory beside them

struct Norms {
  float* norms;
  const float* keys;
  int64_t half;

  __device__ void operator()(int64_t key, int lane) const {
    const float sum = warp_sum_of(half, lane, [&](int64_t c) { return keys[key * half + c] * keys[key * half + c]; });
    if (lane == 0) { norms[key] = sum; }
  }
};

/// The item of the largest key among the warp's lanes, ties to the lower item, in every lane; items are not negative.
__device__ __forceinline__ int64_t first_of_warp(int32_t key, int32_t item) {
  const int64_t own = static_cast<int64_t>(key) * (int64_t{1} << 32) + (INT32_MAX - item);
  return INT32_MAX - (warp_max(own) & INT32_MAX);
}

Found found_of(const FwpkmLookup& a) {
  return {a.entries.as<int32_t>(), a.slots.as<int32_t>(), a.scores.as<float>(), a.probs.as<float>(),
          a.weights.as<float>()};
}

/// The k entries of one token and codebook, best first, by one warp. ranks: at least max(n, 2 k) words of shared
/// memory.
template <class T>
__device__ __forceinline__ void choose_entries(const Found& out, int32_t* ranks, const LookupKeys<T>& in,
                                               int64_t half_query, bool keep, int lane) {
  int32_t* const entries = out.entries + half_query * in.k;
  for (int64_t j = 0; !keep && j < in.k; ++j) {
    int32_t best = kTaken, at = INT32_MAX;
    for (int64_t i = lane; i < in.n; i += 32) {
      if (ranks[i] > best) {
        best = ranks[i];
        at = static_cast<int32_t>(i);
      }
    }
    const int64_t chosen = first_of_warp(best, at);
    if (chosen % 32 == lane) {
      ranks[chosen] = kTaken;
      entries[j] = static_cast<int32_t>(chosen);
    }
  }
  __syncwarp();
  // The ranks' memory takes the chosen: index and exact score.
  auto* const exact = reinterpret_cast<float*>(ranks + in.k);
  for (int64_t j = 0; j < in.k; ++j) {
    const int32_t i = entries[j];
    const float score = in.score(half_query, i, lane);
    if (lane == 0) {
      ranks[j] = i;
      exact[j] = score;
    }
  }
  __syncwarp();
  float top = -INFINITY, total = 0;
  if (out.probs != nullptr) {
    for (int64_t j = lane; j < in.k; j += 32) { top = fmaxf(top, exact[j]); }
    top = warp_max(top);
    for (int64_t j = lane; j < in.k; j += 32) { total += expf(exact[j] - top); }
    total = warp_sum(total);
  }
  for (int64_t j = lane; j < in.k; j += 32) {
    int64_t to = keep ? j : 0;
    for (int64_t i = 0; !keep && i < in.k; ++i) { to += is_before({exact[i], ranks[i]}, {exact[j], ranks[j]}) ? 1 : 0; }
    entries[to] = ranks[j];
    out.scores[half_query * in.k + to] = exact[j];
    if (out.probs != nullptr) { out.probs[half_query * in.k + to] = expf(exact[j] - top) / total; }
  }
}

/// Grid: tokens of the chunk by `tokens`, codebooks of heads.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    fwpkm_entries_kernel(Found out, LookupKeys<T> in, FastChunk chunk, int64_t all, int64_t tokens, int64_t stride,
                         bool keep) {
  HEBB_DYN_SHARED(raw);
  HEBB_SHARED(RankStage, stage);
  auto* const ranks = reinterpret_cast<int32_t*>(raw);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tokens, codebook = blockIdx.y;
  const int64_t here = first + tokens < all ? tokens : all - first;
  if (!keep) { rank_keys(ranks, stride, stage, in, chunk, first, here, codebook); }
  __syncthreads();
  for (int64_t i = threadIdx.x / 32; i < here; i += kWarps) {
    choose_entries(out, ranks + i * stride, in, token_of(chunk, first + i) * in.heads * 2 + codebook, keep,
                   static_cast<int>(threadIdx.x % 32));
  }
}

/// The same on tensor cores; see rank_keys_mma. Shared: the stages, then ranks.
__global__ void __launch_bounds__(kMmaRankThreads, 1)
    fwpkm_entries_mma_kernel(Found out, LookupKeys<bf16> in, FastChunk chunk, int64_t all, int64_t tokens,
                             int64_t stride) {
  HEBB_DYN_SHARED(raw);
  auto* const ranks = reinterpret_cast<int32_t*>(raw + sizeof(MmaRankStage));
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tokens, codebook = blockIdx.y;
  const int64_t here = first + tokens < all ? tokens : all - first;
  rank_keys_mma(ranks, stride, *reinterpret_cast<MmaRankStage*>(raw), in, chunk, first, here, codebook);
  __syncthreads();
  for (int64_t i = threadIdx.x / 32; i < here; i += kMmaRankWarps) {
    choose_entries(out, ranks + i * stride, in, token_of(chunk, first + i) * in.heads * 2 + codebook, false,
                   static_cast<int>(threadIdx.x % 32));
  }
}

/// The k best slots over the entries of both codebooks of one head of a token, best first, by one warp. shared: 3 k
/// words.
__device__ __forceinline__ void choose_slots(const Found& out, int32_t* shared, int64_t n, int64_t k, int64_t head,
                                             int lane) {
  int32_t* const next = shared + 2 * k;  // behind the sorted items of both codebooks
  const int32_t* const entries = out.entries + head * 2 * k;
  const float* const scores = out.scores + head * 2 * k;
  for (int64_t item = lane; item < 2 * k; item += 32) {
    const int64_t codebook = item < k ? 0 : 1, base = codebook * k;
    int64_t rank = 0;
    for (int64_t i = base; i < base + k; ++i) {
      const KeyPair other{scores[i], entries[i]}, own{scores[item], entries[item]};
      rank += is_before(other, own) || (i < item && !is_before(own, other)) ? 1 : 0;
    }
    shared[base + rank] = static_cast<int32_t>(item);
    if (codebook == 0) { next[item] = 0; }
  }
  __syncwarp();
  for (int64_t j = 0; j < k; ++j) {
    int32_t best = kTaken, slot = INT32_MAX;
    int64_t at = -1;
    float best_sum = 0;
    for (int64_t p = lane; p < k; p += 32) {
      if (next[p] < k) {
        const int32_t a = shared[p], b = shared[k + next[p]];
        const float sum = scores[a] + scores[b];
        const auto candidate = static_cast<int32_t>(entries[a] * n + entries[b]);
        const int32_t key = order_key(sum);
        if (at < 0 || key > best || (key == best && candidate < slot)) {
          best = key;
          slot = candidate;
          best_sum = sum;
          at = p;
        }
      }
    }
    const int64_t chosen = first_of_warp(best, slot);
    const bool is_first = at >= 0 && chosen == slot;  // given entries may contain a slot twice
    const unsigned winners = __ballot_sync(kAllLanes, is_first);
    if (is_first && lane == __ffs(static_cast<int>(winners)) - 1) {
      out.slots[head * k + j] = slot;
      out.weights[head * k + j] = best_sum;
      ++next[at];
    }
    __syncwarp();
  }
}

/// Grid: heads of tokens, a warp each.
__global__ void __launch_bounds__(kThreads)
    fwpkm_slots_kernel(Found out, int64_t n, int64_t k, int64_t heads, FastChunk chunk, int64_t all) {
  HEBB_DYN_SHARED(raw);
  const int64_t warp = threadIdx.x / 32, item = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + warp;
  if (item < all) {
    choose_slots(out, reinterpret_cast<int32_t*>(raw) + warp * 3 * k, n, k, EntryOf(chunk, item, heads).entry,
                 static_cast<int>(threadIdx.x % 32));
  }
}

/// Sums of scores of given slots. Row: entry of a token of the chunk.
template <class T> struct ScoreSlots {
  Found out;
  LookupKeys<T> in;
  FastChunk chunk;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t at = EntryOf(chunk, row, in.heads * in.k).entry, head = Split(at, in.k).quotient;
    const Split slot(out.slots[at], in.n);
    const float sum = in.score(head * 2, slot.quotient, lane) + in.score(head * 2 + 1, slot.remainder, lane);
    if (lane == 0) { out.weights[at] = sum; }
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
    for (int64_t j = lane; j < entries; j += 32) { top = fmaxf(top, w[j]); }
    top = warp_max(top);
    for (int64_t j = lane; j < entries; j += 32) { total += expf(w[j] - top); }
    total = warp_sum(total);
    for (int64_t j = lane; j < entries; j += 32) { w[j] = expf(w[j] - top) / total; }
  }
};

template <class T> void lookup(Stream& stream, const FwpkmLookupKeys& a) {
  const int64_t heads = a.out.slots.size(1), k = a.out.slots.size(2), n = a.keys.size(2), half = a.keys.size(3),
                rows = a.chunk.tokens();
  float* const norms = a.score.idw ? a.key_norms.as<float>() : nullptr;
  const LookupKeys<T> in{a.q.as<T>(), a.keys.as<float>(), norms, heads, n, half, k, static_cast<float>(a.score.eps)};
  const Found out = found_of(a.out);
  if (norms != nullptr && !a.keep_norms) {
    each_warp("fwpkm_key_norms", stream, heads * 2 * n, Norms{norms, in.keys, half});
  }
  bool is_done = false;
  if constexpr (std::is_same_v<T, bf16>) {
    is_done = !a.keep_entries && product_key_cores(a.q, a.keys, k).tensor;
    if (is_done) { find_entries_mma(stream, out, in, a.chunk); }
  }
  if (!is_done) {
    const int64_t stride = std::max(a.keep_entries ? 0 : n, 2 * k), word = static_cast<int64_t>(sizeof(int32_t));
    const int64_t tokens =
        std::clamp<int64_t>(std::min(kRankBytes, block_shared_bytes() - kStageBytes) / (stride * word), 1, kRankTokens);
    HEBB_LAUNCH(fwpkm_entries_kernel<T>, dim3(blocks_for(rows, tokens), blocks_for(heads * 2, 1)), kThreads,
                tokens * stride * word, stream, out, in, a.chunk, rows, tokens, stride, a.keep_entries);
  }
  if (a.keep_slots) { each_warp("fwpkm_score_slots", stream, rows * heads * k, ScoreSlots<T>{out, in, a.chunk}); }
}

}  // namespace

void find_entries_mma(Stream& stream, const Found& out, const LookupKeys<bf16>& in, const FastChunk& chunk) {
  const int64_t stride = rank_stride(in.n, in.k), tokens = ranked_tokens(in.n, in.k, block_shared_bytes());
  HEBB_LAUNCH(fwpkm_entries_mma_kernel, dim3(blocks_for(chunk.tokens(), tokens), blocks_for(in.heads * 2, 1)),
              kMmaRankThreads, kRankStageBytes + tokens * stride * static_cast<int64_t>(sizeof(int32_t)), stream, out,
              in, chunk, chunk.tokens(), tokens, stride);
}

void find_slots(Stream& stream, const Found& out, int64_t n, int64_t k, int64_t heads, const FastChunk& chunk) {
  const int64_t word = static_cast<int64_t>(sizeof(int32_t)), all = chunk.tokens() * heads;
  const int64_t warps = std::clamp<int64_t>(kRankBytes / (3 * k * word), 1, kWarps);
  HEBB_LAUNCH(fwpkm_slots_kernel, blocks_for(all, warps), static_cast<unsigned>(32 * warps), warps * 3 * k * word,
              stream, out, n, k, heads, chunk, all);
}

void run(Stream& stream, const FwpkmLookupKeys& a) {
  dispatch_float(a.q.dtype, [&]<class S>(S) { lookup<S>(stream, a); });
}

void run(Stream& stream, const FwpkmSelectSlots& a) {
  const int64_t heads = a.out.slots.size(1), k = a.out.slots.size(2);
  const Found out = found_of(a.out);
  if (!a.keep_slots) { find_slots(stream, out, a.subkeys, k, heads, a.chunk); }
  each_warp("fwpkm_weigh_slots", stream, a.chunk.tokens(), WeighSlots{out.weights, a.chunk, heads * k});
}

}  // namespace hebb::HEBB_DEVICE
