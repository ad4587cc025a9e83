#pragma once
// The chunked delta rule of one value head of one row, by one block; matrices of a chunk lie in the block's scratch,
// row-major without gaps. The algebra is docs/layers/gdn.md, Chunk form, in the order of the CPU's kernels.
#include "kernels/common/cuda/block.cuh"
#include "kernels/gated_delta/gated_delta.h"
#include "kernels/gated_delta/sizes.h"

namespace hebb::HEBB_DEVICE::delta {

struct Chunks {
  const int64_t *chunks, *rows;

  explicit Chunks(const ChunkGrid& grid) : chunks(grid.chunks.as<int64_t>()), rows(grid.rows.as<int64_t>()) {}
  __device__ DeltaChunk at(int64_t i) const { return {chunks[3 * i], chunks[3 * i + 1], chunks[3 * i + 2]}; }
};

/// Where the tokens of one value head lie: token i of the batch at pointer + i * stride.
template <class T> struct HeadInputs {
  const T *q, *k, *v;
  const float *g, *beta;
  int64_t key_stride, value_stride, gate_stride;
};

/// Inputs of all heads.
template <class T> struct Inputs {
  HeadInputs<T> all;

  template <class Args>
  Inputs(const Args& a, const DeltaSizes& n)
      : all{a.q.template as<T>(),        a.k.template as<T>(),    a.v.template as<T>(),        a.g.template as<float>(),
            a.beta.template as<float>(), n.key_heads * n.key_dim, n.value_heads * n.value_dim, n.value_heads} {}
  __device__ HeadInputs<T> head(const DeltaSizes& n, int64_t head) const {
    HeadInputs<T> in = all;
    in.q += head / n.group() * n.key_dim;
    in.k += head / n.group() * n.key_dim;
    in.v += head * n.value_dim;
    in.g += head;
    in.beta += head;
    return in;
  }
};

/// `rows` rows of n elements, `stride` apart, times factor, without gaps.
template <class T>
__device__ __forceinline__ void gather_rows(int64_t rows, int64_t n, const T* from, int64_t stride, float factor,
                                            float* to) {
  block_rows(rows, n,
             [&](int64_t i, int64_t row, int64_t column) { to[i] = factor * to_float(from[row * stride + column]); });
}

/// exp(x), x <= 0.
__device__ __forceinline__ float decay(double x) { return x < -80.0 ? 0.0f : expf(static_cast<float>(x)); }

/// The decays of a chunk. Sums of logs and their differences are taken in double: after a strong decay an fp32 sum has
/// lost the digits of the weak ones that follow.
struct Decays {
  double* sums;        // [c] gam
  float *start, *end;  // [c] e^gam, e^(gam_last - gam)
  float* table;        // [c, c] e^(gam_i - gam_j), j <= i

  __device__ Decays(ScratchParts& parts, int64_t c)
      : sums(parts.doubles(c)), start(parts.take(c)), end(parts.take(c)), table(parts.take(c * c)) {}
  __device__ float last(int64_t c) const { return start[c - 1]; }

  __device__ void load(const float* g, int64_t stride, int64_t c) {
    if (threadIdx.x == 0) {
      double total = 0;
      for (int64_t i = 0; i < c; ++i) {
        total += static_cast<double>(g[i * stride]);
        sums[i] = total;
      }
    }
    __syncthreads();
    block_each(c, [&](int64_t i) {
      start[i] = decay(sums[i]);
      end[i] = decay(sums[c - 1] - sums[i]);
    });
    block_rows(c, c, [&](int64_t at, int64_t i, int64_t j) { table[at] = j <= i ? decay(sums[i] - sums[j]) : 0.0f; });
  }
};

/// The forward scan over chunks: prediction errors and state.
struct ChunkScan {
  Decays decays;
  float* beta;                // [c]
  float* kq;                  // [2 c, dk] K above the scaled Q
  float* products;            // [2 c, c] KQ Kᵀ
  float* lower;               // [c, c]
  float* read;                // [2 c, dv] KQ S
  float *own_errors, *delta;  // [c, dv]
  float *own_state, *home = nullptr, *state = nullptr;
  const float* initial = nullptr;
  bool has_state = false;  // whether the state before the chunk is anything but 0
  int64_t dk, dv;

  __device__ ChunkScan(ScratchParts& parts, const DeltaSizes& n, int64_t longest)
      : decays(parts, longest),
        beta(parts.take(longest)),
        kq(parts.take(2 * longest * n.key_dim)),
        products(parts.take(2 * longest * longest)),
        lower(parts.take(longest * longest)),
        read(parts.take(2 * longest * n.value_dim)),
        own_errors(parts.take(longest * n.value_dim)),
        delta(parts.take(longest * n.value_dim)),
        own_state(parts.take(n.state())),
        dk(n.key_dim),
        dv(n.value_dim) {}

  /// carried: the row's state in and out, or null; first: the state before a document, or null (0).
  __device__ void begin_row(float* carried, const float* first) {
    state = home = carried != nullptr ? carried : own_state;
    initial = first;
  }

  __device__ void enter(bool begins_document) {
    has_state = !begins_document || initial != nullptr;
    if (begins_document) {
      state = home;
      if (initial != nullptr) {
        block_each(dk * dv, [&](int64_t i) { state[i] = initial[i]; });
      }
    }
  }

  /// Without `corrects` E = v. E (to `errors`) and delta = beta E: E_i + sum_{j<i} D_ij (k_i . k_j) beta_j E_j = v_i -
  /// e^gam_i k_i S.
  template <class T>
  __device__ void solve(const HeadInputs<T>& in, const DeltaChunk& chunk, float scale, bool corrects, bool queries,
                        float* errors) {
    const int64_t c = chunk.length, rows = queries ? 2 * c : c;
    gather_rows(c, dk, in.k + chunk.token * in.key_stride, in.key_stride, 1.0f, kq);
    if (queries) { gather_rows(c, dk, in.q + chunk.token * in.key_stride, in.key_stride, scale, kq + c * dk); }
    gather_rows(c, 1, in.beta + chunk.token * in.gate_stride, in.gate_stride, 1.0f, beta);
    gather_rows(c, dv, in.v + chunk.token * in.value_stride, in.value_stride, 1.0f, errors);
    decays.load(in.g + chunk.token * in.gate_stride, in.gate_stride, c);
    block_product<false, true>(rows, c, dk, 1.0f, {kq, dk}, {kq, dk}, false, {products, c});
    if (has_state) { block_product<false, false>(rows, dv, dk, 1.0f, {kq, dk}, {state, dv}, false, {read, dv}); }
    if (corrects) {
      if (has_state) {
        block_rows(c, dv, [&](int64_t at, int64_t i, int64_t) { errors[at] -= decays.start[i] * read[at]; });
      }
      block_rows(c, c, [&](int64_t at, int64_t i, int64_t j) {
        lower[at] = j < i ? decays.table[at] * products[at] * beta[j] : 0.0f;
      });
      block_solve_lower(c, dv, lower, errors);
    }
    block_rows(c, dv, [&](int64_t at, int64_t i, int64_t) { delta[at] = beta[i] * errors[at]; });
  }

  /// next (may be state) = e^gam_last state + sum_i k_iᵀ e^(gam_last - gam_i) delta_i, from now on the state.
  /// Overwrites delta.
  __device__ void advance(int64_t c, float* next) {
    block_rows(c, dv, [&](int64_t at, int64_t i, int64_t) { delta[at] *= decays.end[i]; });
    if (has_state) {
      const float last = decays.last(c);
      block_each(dk * dv, [&](int64_t i) { next[i] = last * state[i]; });
    }
    block_product<true, false>(dk, dv, c, 1.0f, {kq, dk}, {delta, dv}, has_state, {next, dv});
    state = next;
  }
};

}  // namespace hebb::HEBB_DEVICE::delta
