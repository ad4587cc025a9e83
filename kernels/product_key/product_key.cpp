#include "kernels/product_key/product_key.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/gemm/gemm_cpu.h"
#include "kernels/product_key/scratch.h"
#include "kernels/product_key/select.h"

namespace hebb {

Cores product_key_cores(const Tensor& q, const Tensor& keys, int64_t k) {
  const int64_t n = keys.size(2), half = keys.size(3), shared = block_shared_bytes();
  if (q.dtype != DType::bf16) { return {}; }
  if (half % 8 != 0) {
    return {false, fmt::format("halves of {:d} channels (tensor cores take multiples of 8)", half)};
  }
  if (k > n) { return {false, fmt::format("{:d} slots of {:d} sub-keys", k, n)}; }
  if (ranked_tokens(n, k, shared) < 16) {
    return {false,
            fmt::format("{:d} sub-keys: {}", n, shared_memory_obstacle(kRankStageBytes + 16 * 4 * rank_stride(n, k)))};
  }
  if (!all_aligned({q, keys})) { return {false, kAddressObstacle}; }
  return {true, ""};
}

ProductKeyTopKScratch plan(Workspace& workspace, const ProductKeyTopK& args) {
  return {.on_tensor_cores = takes_tensor_cores(workspace.stream(), "product keys",
                                                product_key_cores(args.q, args.keys, args.slots.size(2)))};
}
HEBB_KERNEL_PLANNED(ProductKeyTopK)

ProductKeyBackwardScratch plan(Workspace& workspace, const ProductKeyBackward& args) {
  return {.d_sums = workspace.tensor(args.weights.shape, args.weights.dtype, "score gradients")};
}
HEBB_KERNEL_PLANNED(ProductKeyBackward)

namespace cpu {
namespace {

struct ProductKeySizes {
  int64_t tokens, heads, n, half, k;
};

ProductKeySizes sizes(const Tensor& slots, const Tensor& keys) {
  return {slots.size(0), slots.size(1), keys.size(2), keys.size(3), slots.size(2)};
}

template <class S> void backward(const ProductKeyBackward& a, const ProductKeyBackwardScratch& scratch) {
  const ProductKeySizes s = sizes(a.slots, a.keys);
  const int64_t width = s.heads * 2 * s.half;
  const S *q = a.q.as<S>(), *keys = a.keys.as<S>();
  const int32_t* slots = a.slots.as<int32_t>();
  S* d_sums = scratch.d_sums.as<S>();
  parallel_each(s.tokens, 16, [&](int64_t t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t at = (t * s.heads + h) * s.k;
      const S *w = a.weights.as<S>() + at, *dw = a.d_weights.as<S>() + at;
      S mean = 0;
      for (int64_t j = 0; j < s.k; ++j) { mean += w[j] * dw[j]; }
      for (int64_t j = 0; j < s.k; ++j) { d_sums[at + j] = w[j] * (dw[j] - mean); }
    }
    if (!a.d_q.defined()) { return; }
    S* d_q = a.d_q.as<S>() + t * width;
    if (!a.accumulate) { std::fill(d_q, d_q + width, S(0)); }
    for (int64_t e = 0; e < s.heads * s.k; ++e) {
      const int64_t h = e / s.k, slot = slots[t * s.heads * s.k + e];
      const S g = d_sums[t * s.heads * s.k + e];
      const S* key[2] = {keys + ((h * 2) * s.n + slot / s.n) * s.half,
                         keys + ((h * 2 + 1) * s.n + slot % s.n) * s.half};
      for (int64_t c = 0; c < 2; ++c) {
        S* to = d_q + (h * 2 + c) * s.half;
        for (int64_t i = 0; i < s.half; ++i) { to[i] += g * key[c][i]; }
      }
    }
  });
  if (!a.d_keys.defined()) { return; }
  // One task per codebook and column slice: every key sums its tokens in order.
  constexpr int64_t kSlice = 64;
  const int64_t slices = (s.half + kSlice - 1) / kSlice;
  parallel_each(s.heads * 2 * slices, 1, [&](int64_t task) {
    const int64_t codebook = task / slices, h = codebook / 2, first = (task % slices) * kSlice;
    const int64_t last = std::min(s.half, first + kSlice);
    S* d_keys = a.d_keys.as<S>() + codebook * s.n * s.half;
    for (int64_t t = 0; t < s.tokens; ++t) {
      const S* from = q + t * width + codebook * s.half;
      for (int64_t j = 0; j < s.k; ++j) {
        const int64_t e = (t * s.heads + h) * s.k + j;
        S* to = d_keys + (codebook % 2 == 0 ? slots[e] / s.n : slots[e] % s.n) * s.half;
        for (int64_t i = first; i < last; ++i) { to[i] += d_sums[e] * from[i]; }
      }
    }
  });
}

}  // namespace

void run(Stream&, const ProductKeyTopK& a, const ProductKeyTopKScratch&) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const ProductKeySizes s = sizes(a.slots, a.keys);
    // Tiles whose two score blocks stay in the L2 cache.
    const int64_t tile = std::clamp<int64_t>(32768 / s.n, 1, 64);
    parallel_for(s.tokens, tile, [&](int64_t begin, int64_t end) {
      static thread_local std::vector<S> scores;
      static thread_local ProductKeyWork<S> work;
      for (int64_t t0 = begin; t0 < end; t0 += tile) {
        const int64_t rows = std::min(tile, end - t0);
        scores.resize(static_cast<size_t>(2 * rows * s.n));
        for (int64_t h = 0; h < s.heads; ++h) {
          for (int64_t c = 0; c < 2; ++c) {
            gemm_serial<S>(false, true, rows, s.n, s.half, S(1), a.q.as<S>() + ((t0 * s.heads + h) * 2 + c) * s.half,
                           s.heads * 2 * s.half, a.keys.as<S>() + (h * 2 + c) * s.n * s.half, s.half, false,
                           scores.data() + c * rows * s.n, s.n);
          }
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = ((t0 + r) * s.heads + h) * s.k;
            select_product_keys(scores.data() + r * s.n, scores.data() + (rows + r) * s.n, s.n, s.k, work,
                                a.slots.as<int32_t>() + at, a.sums.as<S>() + at);
          }
        }
      }
    });
  });
}

void run(Stream&, const ProductKeyScore& a) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const ProductKeySizes s = sizes(a.slots, a.keys);
    parallel_each(s.tokens * s.heads, 16, [&](int64_t i) {
      const int64_t h = i % s.heads;
      const S *q = a.q.as<S>() + i * 2 * s.half, *keys = a.keys.as<S>() + h * 2 * s.n * s.half;
      for (int64_t j = 0; j < s.k; ++j) {
        const int64_t slot = a.slots.as<int32_t>()[i * s.k + j];
        a.sums.as<S>()[i * s.k + j] =
            dot(s.half, q, keys + slot / s.n * s.half) + dot(s.half, q + s.half, keys + (s.n + slot % s.n) * s.half);
      }
    });
  });
}

void run(Stream&, const SoftmaxRows& a) {
  dispatch_real(a.sums.dtype, [&]<class S>(S) {
    parallel_each(a.sums.numel() / a.size, 64,
                  [&](int64_t r) { softmax(a.size, a.sums.as<S>() + r * a.size, a.weights.as<S>() + r * a.size); });
  });
}

void run(Stream&, const SlotRead& a) {
  dispatch_real(a.values.dtype, [&]<class S>(S) {
    const int64_t entries = a.slots.numel() / a.r.size(0), dv = a.values.size(1);
    parallel_each(a.r.size(0), 8, [&](int64_t t) {
      S* r = a.r.as<S>() + t * dv;
      std::fill(r, r + dv, S(0));
      for (int64_t e = t * entries; e < (t + 1) * entries; ++e) {
        const S w = a.weights.as<S>()[e];
        const S* row = a.values.as<S>() + a.slots.as<int32_t>()[e] * dv;
        for (int64_t i = 0; i < dv; ++i) { r[i] += w * row[i]; }
      }
    });
  });
}

void run(Stream&, const SlotReadBackward& a) {
  dispatch_real(a.values.dtype, [&]<class S>(S) {
    const int64_t tokens = a.d_r.size(0), entries = a.slots.numel() / tokens, dv = a.values.size(1);
    const S* d_r = a.d_r.as<S>();
    const int32_t* slots = a.slots.as<int32_t>();
    parallel_each(tokens * entries, 8 * entries, [&](int64_t e) {
      a.d_weights.as<S>()[e] = dot(dv, a.values.as<S>() + slots[e] * dv, d_r + e / entries * dv);
    });

    if (!a.d_values.defined()) { return; }
    // Threads own column slices: every row sums its readers in token order.
    parallel_for(dv, 64, [&](int64_t begin, int64_t end) {
      for (int64_t e = 0; e < tokens * entries; ++e) {
        S* to = a.d_values.as<S>() + slots[e] * dv;
        const S* from = d_r + e / entries * dv;
        const S w = a.weights.as<S>()[e];
        for (int64_t i = begin; i < end; ++i) { to[i] += w * from[i]; }
      }
    });
  });
}

void run(Stream&, const ProductKeyBackward& args, const ProductKeyBackwardScratch& scratch) {
  dispatch_real(args.q.dtype, [&]<class S>(S) { backward<S>(args, scratch); });
}

}  // namespace cpu
}  // namespace hebb
