#include "kernels/product_key.h"

#include "kernels/cuda/common/key_select.h"
#include "kernels/cuda/common/scatter.h"

// Scores are exact fp32 (decisions hang on them) and never leave the block. Selection: one block a head of a token, which reads both
// codebooks from L2: bound by that, 8 n D bytes a head, until several tokens share a block. Reading values: HBM, E rows a token.
namespace hebb::HEBB_DEVICE {
namespace {

/// q [N, H, 2, D], keys [H, 2, n, D].
struct Keys {
  const float *q, *keys;
  int64_t heads, n, half, k;

  /// q . key of codebook `book` for token and head `row`, by one warp.
  __device__ __forceinline__ float score(int64_t row, int64_t book, int64_t i, int lane HEBB_WHERE_PARAMETER) const {
    const float *const query = q + (row * 2 + book) * half, *const key = keys + ((row % heads * 2 + book) * n + i) * half;
    float sum = 0;
    for (int64_t c = lane; c < half; c += 32) {
      sum += query[c] * key[c];
    }
    return warp_sum(sum HEBB_WHERE_ARGUMENT);
  }
};

__global__ void __launch_bounds__(kSelectThreads) product_key_kernel(int32_t* slots, float* sums, Keys in) {
  HEBB_DYN_SHARED(raw);
  const KeySelection s(raw, in.n, in.k);
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t i = threadIdx.x / 32; i < 2 * in.n; i += kSelectThreads / 32) {
    const float score = in.score(blockIdx.x, i / in.n, i % in.n, lane);
    if (lane == 0) {
      s.scores[i] = score;
    }
  }
  select_keys(s);
  for (int64_t j = threadIdx.x; j < in.k; j += kSelectThreads) {
    slots[blockIdx.x * in.k + j] = s.chosen[j].slot;
    sums[blockIdx.x * in.k + j] = s.chosen[j].sum;
  }
}

struct Score {
  float* sums;
  const int32_t* slots;
  Keys in;

  __device__ void operator()(int64_t entry, int lane) const {
    const int64_t row = entry / in.k, slot = slots[entry];
    const float sum = in.score(row, 0, slot / in.n, lane) + in.score(row, 1, slot % in.n, lane);
    if (lane == 0) {
      sums[entry] = sum;
    }
  }
};

struct Softmax {
  float* weights;
  const float* sums;
  int64_t size;

  __device__ void operator()(int64_t row, int lane) const {
    float top = -INFINITY, total = 0;
    for (int64_t at = row * size + lane; at < (row + 1) * size; at += 32) {
      top = fmaxf(top, sums[at]);
    }
    top = warp_max(top);
    for (int64_t at = row * size + lane; at < (row + 1) * size; at += 32) {
      total += expf(sums[at] - top);
    }
    total = warp_sum(total);
    for (int64_t at = row * size + lane; at < (row + 1) * size; at += 32) {
      weights[at] = expf(sums[at] - top) / total;
    }
  }
};

struct Read {
  float* r;
  const int32_t* slots;
  const float *weights, *values;
  int64_t entries, width;

  __device__ void operator()(int64_t token, int64_t c) const {
    float sum = 0;
    for (int64_t e = token * entries; e < (token + 1) * entries; ++e) {
      sum += weights[e] * values[slots[e] * width + c];
    }
    r[token * width + c] = sum;
  }
};

struct WeightGradient {
  float* d_weights;
  const int32_t* slots;
  const float *d_r, *values;
  int64_t entries, width;

  __device__ void operator()(int64_t entry, int lane) const {
    const float *const row = values + slots[entry] * width, *const d = d_r + entry / entries * width;
    float sum = 0;
    for (int64_t c = lane; c < width; c += 32) {
      sum += row[c] * d[c];
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      d_weights[entry] = sum;
    }
  }
};

/// Through the softmax of one head.
struct SumGradient {
  float* d_sums;
  const float *d_weights, *weights;
  int64_t k;

  __device__ void operator()(int64_t row, int lane) const {
    float mean = 0;
    for (int64_t at = row * k + lane; at < (row + 1) * k; at += 32) {
      mean += weights[at] * d_weights[at];
    }
    mean = warp_sum(mean);
    for (int64_t at = row * k + lane; at < (row + 1) * k; at += 32) {
      d_sums[at] = weights[at] * (d_weights[at] - mean);
    }
  }
};

// Row: token, head, codebook.
struct QueryGradient {
  float* d_q;
  const float* d_sums;
  const int32_t* slots;
  Keys in;
  bool accumulate;

  __device__ void operator()(int64_t item, int64_t c) const {
    const int64_t row = item / 2, book = item % 2;
    float sum = 0;
    for (int64_t e = row * in.k; e < (row + 1) * in.k; ++e) {
      const int64_t i = book == 0 ? slots[e] / in.n : slots[e] % in.n;
      sum += d_sums[e] * in.keys[((row % in.heads * 2 + book) * in.n + i) * in.half + c];
    }
    write(d_q[item * in.half + c], sum, accumulate);
  }
};

template <class Args>
Keys keys_of(const Args& a) {
  return {a.q.template as<float>(), a.keys.template as<float>(), a.keys.size(0), a.keys.size(2), a.keys.size(3), a.slots.size(2)};
}

}  // namespace

void run(Stream& stream, const ProductKeyTopK& a) {
  const Keys keys = keys_of(a);
  if (a.slots.numel() > 0) {
    HEBB_LAUNCH(product_key_kernel, blocks_for(a.slots.numel() / keys.k, 1), kSelectThreads, KeySelection::bytes(keys.n, keys.k), stream,
                a.slots.as<int32_t>(), a.sums.as<float>(), keys);
  }
}

void run(Stream& stream, const ProductKeyScore& a) {
  each_warp("product_key_score", stream, a.slots.numel(), Score{a.sums.as<float>(), a.slots.as<int32_t>(), keys_of(a)});
}

void run(Stream& stream, const SoftmaxRows& a) {
  each_warp("softmax_rows", stream, a.sums.numel() / a.size, Softmax{a.weights.as<float>(), a.sums.as<float>(), a.size});
}

void run(Stream& stream, const SlotRead& a) {
  const int64_t tokens = a.r.size(0);
  each_element("slot_read", stream, tokens, a.values.size(1),
               Read{a.r.as<float>(), a.slots.as<int32_t>(), a.weights.as<float>(), a.values.as<float>(), a.slots.numel() / tokens,
                    a.values.size(1)});
}

void run(Stream& stream, const SlotReadBackward& a) {
  const int64_t entries = a.slots.numel() / a.d_r.size(0), width = a.values.size(1);
  each_warp("slot_read_backward", stream, a.slots.numel(),
            WeightGradient{a.d_weights.as<float>(), a.slots.as<int32_t>(), a.d_r.as<float>(), a.values.as<float>(), entries, width});
  if (a.d_values.defined()) {
    scatter_rows(stream, a.d_values.as<float>(), a.values.size(0), width, a.slots.numel(), {a.slots.as<int32_t>()},
                 {a.d_r.data, a.d_r.dtype, width, entries, a.weights.as<float>()});
  }
}

void run(Stream& stream, const ProductKeyBackward& a) {
  const Keys keys = keys_of(a);
  const int64_t rows = a.slots.numel() / keys.k;
  float* const d_sums = a.d_sums.as<float>();
  each_warp("product_key_sums", stream, rows, SumGradient{d_sums, a.d_weights.as<float>(), a.weights.as<float>(), keys.k});
  if (a.d_q.defined()) {
    each_element("product_key_queries", stream, 2 * rows, keys.half,
                 QueryGradient{a.d_q.as<float>(), d_sums, a.slots.as<int32_t>(), keys, a.accumulate});
  }
  for (int book = 0; a.d_keys.defined() && book < 2; ++book) {
    scatter_rows(stream, a.d_keys.as<float>(), keys.heads * 2 * keys.n, keys.half, a.slots.numel(),
                 {a.slots.as<int32_t>(), keys.n, keys.heads, keys.k, book},
                 {keys.q + book * keys.half, DType::f32, 2 * keys.half, keys.k, d_sums});
  }
}

}  // namespace hebb::HEBB_DEVICE
