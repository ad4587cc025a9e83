#include <algorithm>

#include "kernels/attention/mma.cuh"
#include "kernels/attention/scratch.h"
#include "kernels/attention/tile.cuh"

// Gradients of attention in fp32 on the plain cores: one kernel for the queries, one for keys, values and biases, each
// of which computes the probabilities again, so that every sum has one owner and a fixed order. Grid: 64 own lines x kv
// heads x spaces, slices of 256 channels. In bf16 and with the usual head sizes tensor cores do it
// (mma_backward.cu). Static shared: 35 KB. FLOPs: 7 products of a pair instead of 5. Bound: fp32
// multiply-adds.
namespace hebb::HEBB_DEVICE {
namespace {

using namespace attention;

template <class T> struct AttentionBackwardTask {
  Inputs<T> in;
  T *d_q, *d_k, *d_v;
  float* d_bias;
  const T *d_o, *o;
  const float* lse;
  bool accumulate_q, accumulate_k, accumulate_v, accumulate_bias, has_other_keys;
};

/// Probability of a pair, and the gradient at its score.
struct Pair {
  float p, d_score;
};
template <class T>
__device__ __forceinline__ Pair pair_at(const Shared& s, const AttentionBackwardTask<T>& a, int row, int key_slot,
                                        int64_t key, float product, float d_p) {
  if (!sees(s, row, key) || s.lse[row] == -INFINITY) { return {0, 0}; }
  const float bias = a.in.bias != nullptr ? a.in.bias[s.key_line[key_slot]] : 0.0f;
  const float p = expf(a.in.scale * product + bias - s.lse[row]);
  // The weight of a lone key is 1 whatever its score: a gradient of exactly 0, not the difference of two sums.
  return {p, s.hi[row] - s.lo[row] == 1 && !a.has_other_keys ? 0.0f : p * (d_p - s.delta[row])};
}

// d_q of 64 rows: goes over the keys that they see.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) attention_queries_kernel(AttentionBackwardTask<T> a) {
  HEBB_SHARED(Shared, s);
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const HeadLines at = head_lines(a.in, a.in.rows());
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  load_rows(s, a.in, at, at.first);
  __syncthreads();
  load_statistics(s, a.d_o, a.o, a.lse, a.in.dv);
  const int64_t last_row = a.in.rows() - at.first < kTile ? a.in.rows() - at.first - 1 : kTile - 1;
  const int64_t last_key = s.hi[last_row];
  float d_q[4][kColumns] = {};
  for (int64_t base = s.lo[0] / kTile * kTile; base < last_key; base += kTile) {
    load_keys(s, a.in, at, base, true);
    __syncthreads();
    float products[4][4], d_p[4][4];
    multiply_lines(products, s, a.in.q, s.row_line, a.in.k, s.key_line, a.in.d);
    multiply_lines(d_p, s, a.d_o, s.row_line, a.in.v, s.key_line, a.in.dv);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int slot = x + 16 * j;
        s.weights[4 * y + i][slot] =
            a.in.scale * pair_at(s, a, 4 * y + i, slot, base + slot, products[i][j], d_p[i][j]).d_score;
      }
    }
    add_weighted_lines(d_q, s, a.in.k, s.key_line, a.in.d, first_column);
    __syncthreads();  // the key lines and weights are replaced
  }
  write_lines(a.d_q, s.row_line, a.in.d, first_column, d_q, a.accumulate_q);
}

/// First token of the space, in [0, tokens], whose bound exceeds `key`; bounds do not decrease.
__device__ __forceinline__ int64_t first_token_above(const int32_t* bounds, int64_t tokens, int64_t key) {
  return first_where(tokens, [&](int64_t token) { return bounds[token] > key; });
}

// d_k, d_v and d_bias of 64 keys: goes over the rows that see them. Tiles are [key][row] here.
template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads) attention_keys_kernel(AttentionBackwardTask<T> a) {
  HEBB_SHARED(Shared, s);
  const int x = static_cast<int>(threadIdx.x % 16), y = static_cast<int>(threadIdx.x / 16);
  const HeadLines at = head_lines(a.in, a.in.keys);
  const int first_column = static_cast<int>(blockIdx.y) * 16 * kColumns;
  load_keys(s, a.in, at, at.first, false);
  const int32_t *lo = a.in.lo + at.space * a.in.tokens, *hi = a.in.hi + at.space * a.in.tokens;
  const int64_t first_row = first_token_above(hi, a.in.tokens, at.first) * a.in.group;
  const int64_t last_row = first_token_above(lo, a.in.tokens, at.first + kTile - 1) * a.in.group;
  float d_k[4][kColumns] = {}, d_v[4][kColumns] = {}, d_bias[4] = {};
  for (int64_t base = first_row; base < last_row; base += kTile) {
    __syncthreads();  // the last tile's lines and weights were read
    load_rows(s, a.in, at, base);
    __syncthreads();
    load_statistics(s, a.d_o, a.o, a.lse, a.in.dv);
    float products[4][4], d_p[4][4];
    multiply_lines(products, s, a.in.k, s.key_line, a.in.q, s.row_line, a.in.d);
    multiply_lines(d_p, s, a.in.v, s.key_line, a.d_o, s.row_line, a.in.dv);
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      HEBB_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int slot = 4 * y + i;
        const Pair pair = pair_at(s, a, x + 16 * j, slot, at.first + slot, products[i][j], d_p[i][j]);
        s.weights[slot][x + 16 * j] = pair.p;
        d_p[i][j] = pair.d_score;
        d_bias[i] += pair.d_score;
      }
    }
    add_weighted_lines(d_v, s, a.d_o, s.row_line, a.in.dv, first_column);
    __syncthreads();
    HEBB_UNROLL
    for (int i = 0; i < 16; ++i) { s.weights[4 * y + i / 4][x + 16 * (i % 4)] = a.in.scale * d_p[i / 4][i % 4]; }
    add_weighted_lines(d_k, s, a.in.q, s.row_line, a.in.d, first_column);
  }
  __syncthreads();  // without rows nothing has waited for the key lines
  if (a.d_k != nullptr) { write_lines(a.d_k, s.key_line, a.in.d, first_column, d_k, a.accumulate_k); }
  if (a.d_v != nullptr) { write_lines(a.d_v, s.key_line, a.in.dv, first_column, d_v, a.accumulate_v); }
  if (a.d_bias != nullptr && blockIdx.y == 0) {
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float sum = warp_sum<16>(d_bias[i]);
      const int64_t line = s.key_line[4 * y + i];
      if (x == 0 && line >= 0) { write(a.d_bias[line], sum, a.accumulate_bias); }
    }
  }
}

template <class T> void backward(Stream& stream, const AttentionBackward& a) {
  const AttentionBackwardTask<T> b{.in = inputs_of<T>(a.q, a.k, a.v, a.lo, a.hi, a.bias, a.scale),
                                   .d_q = a.d_q.as<T>(),
                                   .d_k = a.d_k.as<T>(),
                                   .d_v = a.d_v.as<T>(),
                                   .d_bias = a.d_bias.as<float>(),
                                   .d_o = a.d_o.as<T>(),
                                   .o = a.o.as<T>(),
                                   .lse = a.lse.as<float>(),
                                   .accumulate_q = a.accumulate_q,
                                   .accumulate_k = a.accumulate_k,
                                   .accumulate_v = a.accumulate_v,
                                   .accumulate_bias = a.accumulate_bias,
                                   .has_other_keys = a.has_other_keys};
  const int64_t heads = b.in.kv_heads * a.k.size(0);
  const auto tiles = [heads](int64_t lines) { return blocks_for((lines + kTile - 1) / kTile * heads, 1); };
  if (a.d_q.defined()) {
    dispatch_width(b.in.d, [&](auto columns, unsigned slices) {
      HEBB_LAUNCH((attention_queries_kernel<T, columns()>), dim3(tiles(b.in.tokens * b.in.group), slices), kThreads, 0,
                  stream, b);
    });
  }
  if (a.d_k.defined() || a.d_v.defined() || a.d_bias.defined()) {
    dispatch_width(std::max(b.in.d, b.in.dv), [&](auto columns, unsigned slices) {
      HEBB_LAUNCH((attention_keys_kernel<T, columns()>), dim3(tiles(b.in.keys), slices), kThreads, 0, stream, b);
    });
  }
}

}  // namespace

void run(Stream& stream, const AttentionBackward& a, const AttentionBackwardScratch& scratch) {
  if (a.q.numel() == 0) { return; }
  if (scratch.on_tensor_cores) {
    attention_mma::backward(stream, a, scratch);
  } else {
    dispatch_float(a.q.dtype, [&]<class S>(S) { backward<S>(stream, a); });
  }
}

}  // namespace hebb::HEBB_DEVICE
