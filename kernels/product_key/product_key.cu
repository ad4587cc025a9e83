#include "kernels/product_key/product_key.h"

#include <algorithm>

#include "kernels/common/cuda/scatter.cuh"
#include "kernels/product_key/lookup.cuh"
#include "kernels/product_key/scratch.h"

// Selection in bf16 is that of fast memories: scores on tensor cores, then k rounds of a warp for each codebook and
// head of a token. At n = 512, k = 32 the rounds take about 6,500 and 2,700 instructions, which bind. Entries and
// scores of a run of tokens lie in the workspace. What follows is for fp32.
//
// Scores are exact fp32 (decisions hang on them) and never leave the block. Selection: one block a head of up to eight
// tokens, which reads both codebooks from L2, 8 n D bytes, and then selects for one token after the other. Bound by
// instructions: of 8 tokens 2 n warps' products of D / 32 steps, and the comparisons of select.cuh. Reading values:
// HBM, E slots a token.
namespace hebb::HEBB_DEVICE {
namespace {

/// q [N, H, 2, D], keys [H, 2, n, D].
template <class T> struct Keys {
  const T* q;
  const float* keys;
  int64_t heads, n, half, k;

  /// q . key of codebook `codebook` for token and head `row`, by one warp.
  __device__ __forceinline__ float score(int64_t row, int64_t codebook, int64_t i, int lane) const {
    const T* const query = q + (row * 2 + codebook) * half;
    const float* const key = keys + ((row % heads * 2 + codebook) * n + i) * half;
    return warp_sum_of(half, lane, [&](int64_t c) { return to_float(query[c]) * key[c]; });
  }
};

constexpr int kTokens = 8, kKeysAtOnce = 2;  // tokens of a block; keys of a warp
constexpr int64_t kScoreBytes = 48 * 1024;   // of a block's tokens, if one needs no more

/// Scores of the block's tokens for one codebook, each key by one warp: to scores [tokens, stride]. queries: [tokens,
/// 2, half].
template <class T>
__device__ __forceinline__ void score_keys(int32_t* scores, int stride, const Keys<T>& in, const float* queries,
                                           int tokens, int64_t codebook) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32),
            n = static_cast<int>(in.n);
  const int half = static_cast<int>(in.half), first_query = static_cast<int>(codebook % 2) * half;
  for (int first = warp * kKeysAtOnce; first < n; first += kSelectThreads / 32 * kKeysAtOnce) {
    const int second = first + 1 < n ? first + 1 : first;
    const float* const left = in.keys + (codebook * n + first) * half;
    const float* const right = in.keys + (codebook * n + second) * half;
    float sums[kTokens][kKeysAtOnce] = {};
    for (int c = lane; c < half; c += 32) {
      const float a = left[c], b = right[c];
      HEBB_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        if (t < tokens) {
          const float query = queries[2 * t * half + first_query + c];
          sums[t][0] += query * a;
          sums[t][1] += query * b;
        }
      }
    }
    HEBB_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if (t < tokens) {  // of all lanes alike
        const float a = warp_sum(sums[t][0]), b = warp_sum(sums[t][1]);
        if (lane == 0) {
          scores[t * stride + first] = static_cast<int32_t>(__float_as_uint(a));
          scores[t * stride + second] = static_cast<int32_t>(__float_as_uint(second > first ? b : a));
        }
      }
    }
  }
}

/// Grid: groups of `tokens` tokens x heads. Shared: their scores and queries, and what one selection needs.
template <class T>
__global__ void __launch_bounds__(kSelectThreads)
    product_key_kernel(int32_t* slots, float* sums, Keys<T> in, SelectionSize size, int64_t all, int tokens) {
  HEBB_DYN_SHARED(raw);
  KeySelection s(raw, size, tokens);
  auto* const queries = reinterpret_cast<float*>(s.chosen + size.k);
  const int64_t first = blockIdx.x / in.heads * tokens, head = blockIdx.x % in.heads;
  const int here = first + tokens < all ? tokens : static_cast<int>(all - first), width = 2 * static_cast<int>(in.half);
  for (int t = 0; t < here; ++t) {
    const T* const from = in.q + ((first + t) * in.heads + head) * width;
    for (int c = static_cast<int>(threadIdx.x); c < width; c += kSelectThreads) {
      queries[t * width + c] = to_float(from[c]);
    }
  }
  __syncthreads();
  for (int codebook = 0; codebook < 2; ++codebook) {
    score_keys(s.keys + codebook * size.padded, 2 * size.padded, in, queries, here, 2 * head + codebook);
  }
  for (int t = 0; t < here; ++t, s.keys += 2 * size.padded) {
    select_keys(s);
    const int64_t row = (first + t) * in.heads + head;
    for (int j = static_cast<int>(threadIdx.x); j < size.k; j += kSelectThreads) {
      slots[row * size.k + j] = s.chosen[j].slot;
      sums[row * size.k + j] = s.chosen[j].sum;
    }
  }
}

template <class T> struct Score {
  float* sums;
  const int32_t* slots;
  Keys<T> in;

  __device__ void operator()(int64_t entry, int lane) const {
    const int64_t row = entry / in.k, slot = slots[entry];
    const float sum = in.score(row, 0, slot / in.n, lane) + in.score(row, 1, slot % in.n, lane);
    if (lane == 0) { sums[entry] = sum; }
  }
};

struct Softmax {
  float* weights;
  const float* sums;
  int64_t size;

  __device__ void operator()(int64_t row, int lane) const {
    float top = -INFINITY, total = 0;
    for (int64_t at = row * size + lane; at < (row + 1) * size; at += 32) { top = fmaxf(top, sums[at]); }
    top = warp_max(top);
    for (int64_t at = row * size + lane; at < (row + 1) * size; at += 32) { total += expf(sums[at] - top); }
    total = warp_sum(total);
    for (int64_t at = row * size + lane; at < (row + 1) * size; at += 32) {
      weights[at] = expf(sums[at] - top) / total;
    }
  }
};

template <class T> struct ProductKeyRead {
  T* r;
  const int32_t* slots;
  const float* weights;
  const T* values;
  int64_t entries, width;

  __device__ void operator()(int64_t token, int64_t c) const {
    float sum = 0;
    for (int64_t e = token * entries; e < (token + 1) * entries; ++e) {
      sum += weights[e] * to_float(values[slots[e] * width + c]);
    }
    r[token * width + c] = from_float<T>(sum);
  }
};

template <class T> struct WeightGradient {
  float* d_weights;
  const int32_t* slots;
  const T *d_r, *values;
  int64_t entries, width;

  __device__ void operator()(int64_t entry, int lane) const {
    const T *const row = values + slots[entry] * width, *const d = d_r + entry / entries * width;
    const float sum = warp_sum_of(width, lane, [&](int64_t c) { return to_float(row[c]) * to_float(d[c]); });
    if (lane == 0) { d_weights[entry] = sum; }
  }
};

/// Through the softmax of one head.
struct SumGradient {
  float* d_sums;
  const float *d_weights, *weights;
  int64_t k;

  __device__ void operator()(int64_t row, int lane) const {
    float mean = 0;
    for (int64_t at = row * k + lane; at < (row + 1) * k; at += 32) { mean += weights[at] * d_weights[at]; }
    mean = warp_sum(mean);
    for (int64_t at = row * k + lane; at < (row + 1) * k; at += 32) {
      d_sums[at] = weights[at] * (d_weights[at] - mean);
    }
  }
};

// Row: token, head, codebook.
template <class T> struct QueryGradient {
  T* d_q;
  const float* d_sums;
  const int32_t* slots;
  Keys<T> in;
  bool accumulate;

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t row = item / 2, codebook = item % 2;
    float sum = 0;
    for (int64_t e = row * in.k; e < (row + 1) * in.k; ++e) {
      const int64_t i = codebook == 0 ? slots[e] / in.n : slots[e] % in.n;
      sum += d_sums[e] * in.keys[((row % in.heads * 2 + codebook) * in.n + i) * in.half + c];
    }
    write(d_q[item * in.half + c], sum, accumulate);
  }
};

template <class T, class Args> Keys<T> keys_of(const Args& a) {
  return {a.q.template as<T>(), a.keys.template as<float>(), a.keys.size(0), a.keys.size(2), a.keys.size(3),
          a.slots.size(2)};
}

/// On tensor cores. Runs of tokens, as entries and scores of all might not fit into the workspace.
void select_mma(Stream& stream, const ProductKeyTopK& a, const Keys<bf16>& in) {
  const int64_t chosen = in.heads * in.k, all = a.slots.size(0),
                words = stream_scratch(stream).bytes / static_cast<int64_t>(sizeof(int32_t));
  const int64_t run = std::min(all, words / (4 * chosen));  // two codebooks, entry and score
  HEBB_ASSERT(run > 0);
  auto* const entries = static_cast<int32_t*>(stream_scratch(stream).data);
  auto* const scores = reinterpret_cast<float*>(entries + 2 * chosen * run);
  for (int64_t first = 0; first < all; first += run) {
    const int64_t tokens = std::min(run, all - first);
    const FastChunk chunk{1, tokens, 0, tokens};
    const LookupKeys<bf16> keys{
        in.q + first * in.heads * 2 * in.half, in.keys, nullptr, in.heads, in.n, in.half, in.k, 0.0f};
    const Found out{entries, a.slots.as<int32_t>() + first * chosen, scores, nullptr,
                    a.sums.as<float>() + first * chosen};
    find_entries_mma(stream, out, keys, chunk);
    find_slots(stream, out, in.n, in.k, in.heads, chunk);
  }
}

template <class T>
void backward(Stream& stream, const ProductKeyBackward& a, const ProductKeyBackwardScratch& scratch) {
  const Keys<T> keys = keys_of<T>(a);
  const int64_t rows = a.slots.numel() / keys.k;
  float* const d_sums = scratch.d_sums.as<float>();
  each_warp("product_key_sums", stream, rows,
            SumGradient{d_sums, a.d_weights.as<float>(), a.weights.as<float>(), keys.k});
  if (a.d_q.defined()) {
    each_element("product_key_queries", stream, 2 * rows, keys.half,
                 QueryGradient<T>{a.d_q.as<T>(), d_sums, a.slots.as<int32_t>(), keys, a.accumulate});
  }
  for (int codebook = 0; a.d_keys.defined() && codebook < 2; ++codebook) {
    scatter_rows(stream, a.d_keys.as<float>(), keys.heads * 2 * keys.n, keys.half, a.slots.numel(),
                 {a.slots.as<int32_t>(), keys.n, keys.heads, keys.k, codebook},
                 {keys.q + codebook * keys.half, a.q.dtype, 2 * keys.half, keys.k, d_sums});
  }
}

}  // namespace

void run(Stream& stream, const ProductKeyTopK& a, const ProductKeyTopKScratch& scratch) {
  if (a.slots.numel() == 0) { return; }
  dispatch_float(a.q.dtype, [&]<class T>(T) {
    const auto keys = keys_of<T>(a);
    if constexpr (std::is_same_v<T, bf16>) {
      if (scratch.on_tensor_cores) { return select_mma(stream, a, keys); }
    }
    const SelectionSize size(keys.n, keys.k);
    const int64_t all = a.slots.size(0), word = static_cast<int64_t>(sizeof(float)),
                  of_token = 2 * (size.padded + keys.half) * word;
    const int64_t tokens = std::clamp<int64_t>(kScoreBytes / of_token, 1, kTokens);
    HEBB_LAUNCH(product_key_kernel<T>, blocks_for((all + tokens - 1) / tokens * keys.heads, 1), kSelectThreads,
                size.bytes(tokens) + tokens * 2 * keys.half * word, stream, a.slots.as<int32_t>(), a.sums.as<float>(),
                keys, size, all, static_cast<int>(tokens));
  });
}

void run(Stream& stream, const ProductKeyScore& a) {
  dispatch_float(a.q.dtype, [&]<class T>(T) {
    each_warp("product_key_score", stream, a.slots.numel(),
              Score<T>{a.sums.as<float>(), a.slots.as<int32_t>(), keys_of<T>(a)});
  });
}

void run(Stream& stream, const SoftmaxRows& a) {
  each_warp("softmax_rows", stream, a.sums.numel() / a.size,
            Softmax{a.weights.as<float>(), a.sums.as<float>(), a.size});
}

void run(Stream& stream, const SlotRead& a) {
  const int64_t tokens = a.r.size(0), width = a.values.size(1);
  dispatch_float(a.r.dtype, [&]<class T>(T) {
    each_element("slot_read", stream, tokens, width,
                 ProductKeyRead<T>{a.r.as<T>(), a.slots.as<int32_t>(), a.weights.as<float>(), a.values.as<T>(),
                                   a.slots.numel() / tokens, width});
  });
}

void run(Stream& stream, const SlotReadBackward& a) {
  const int64_t entries = a.slots.numel() / a.d_r.size(0), width = a.values.size(1);
  dispatch_float(a.d_r.dtype, [&]<class T>(T) {
    each_warp("slot_read_backward", stream, a.slots.numel(),
              WeightGradient<T>{a.d_weights.as<float>(), a.slots.as<int32_t>(), a.d_r.as<T>(), a.values.as<T>(),
                                entries, width});
  });
  if (a.d_values.defined()) {
    scatter_rows(stream, a.d_values.as<float>(), a.values.size(0), width, a.slots.numel(), {a.slots.as<int32_t>()},
                 {a.d_r.data, a.d_r.dtype, width, entries, a.weights.as<float>()});
  }
}

void run(Stream& stream, const ProductKeyBackward& a, const ProductKeyBackwardScratch& scratch) {
  dispatch_float(a.q.dtype, [&]<class S>(S) { backward<S>(stream, a, scratch); });
}

}  // namespace hebb::HEBB_DEVICE
