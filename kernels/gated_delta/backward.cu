#include "kernels/add/add.h"
#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/common/cuda/dispatch_wide.cuh"
#include "kernels/gated_delta/mma.cuh"

// One block a row and key head: per value head it scans forward for states and errors, then in reverse. Scratch and
// bound as in forward.cu; FLOPs of a chunk of C: 2 C (8 C dk + 6 C dv + 8 dk dv). In bf16 tensor cores do it
// (mma_backward.cu).
namespace hebb::HEBB_DEVICE {
namespace {

using namespace delta;

template <class T, class D> struct GatedDeltaBackwardTask {
  DeltaSizes n;
  Inputs<T> in;
  Chunks chunks;
  T *d_q, *d_k, *d_v;
  float *d_g, *d_beta, *starts, *errors, *initial_sums, *scratch;
  const D* d_o;
  const float* initial;
  int64_t scratch_stride, longest;
  float scale;
  bool additive;

  /// E of a chunk, [length, dv]: a chunk's heads lie one after the other.
  __device__ float* errors_of(const DeltaChunk& chunk, int64_t head) const {
    return errors + (chunk.token * n.value_heads + head * chunk.length) * n.value_dim;
  }
  __device__ float* start_of(const DeltaChunk& chunk, int64_t head) const {
    return starts + (chunk.state * n.value_heads + head) * n.state();
  }
};

/// One chunk at a time, backward. Stacked matrices: KQ = [K; Q], XO = [X; dO].
struct Adjoint {
  Decays decays;
  float *beta, *kq, *d_kq, *work;  // [c] [2 c, dk] three times
  float *products, *weights;       // [2 c, c]
  float *xo, *delta;               // [2 c, dv] [c, dv]
  double *d_gam, *shares;          // [c]
  float* d_state;                  // [dk, dv], of the state behind the chunk
  int64_t dk, dv, c = 0;
  const float *state = nullptr, *errors = nullptr;  // before the chunk (null: 0); E
  bool has_d_state = false, additive;

  /// additive: E = v, and the keys' parts that come from the correction are 0.
  __device__ Adjoint(ScratchParts& parts, const DeltaSizes& n, int64_t longest, bool additive)
      : decays(parts, longest),
        beta(parts.take(longest)),
        kq(parts.take(2 * longest * n.key_dim)),
        d_kq(parts.take(2 * longest * n.key_dim)),
        work(parts.take(2 * longest * n.key_dim)),
        products(parts.take(2 * longest * longest)),
        weights(parts.take(2 * longest * longest)),
        xo(parts.take(2 * longest * n.value_dim)),
        delta(parts.take(longest * n.value_dim)),
        d_gam(parts.doubles(longest)),
        shares(parts.doubles(longest)),
        d_state(parts.take(n.state())),
        dk(n.key_dim),
        dv(n.value_dim),
        additive(additive) {}

  template <class T, class D>
  __device__ void enter(const HeadInputs<T>& in, const DeltaChunk& chunk, float scale, const float* before,
                        const float* e, const D* d_o) {
    c = chunk.length;
    state = before;
    errors = e;
    gather_rows(c, dk, in.k + chunk.token * in.key_stride, in.key_stride, 1.0f, kq);
    gather_rows(c, dk, in.q + chunk.token * in.key_stride, in.key_stride, scale, kq + c * dk);
    gather_rows(c, 1, in.beta + chunk.token * in.gate_stride, in.gate_stride, 1.0f, beta);
    gather_rows(c, dv, d_o, in.value_stride, 1.0f, xo + c * dv);
    block_rows(c, dv, [&](int64_t at, int64_t i, int64_t) { delta[at] = beta[i] * errors[at]; });
    decays.load(in.g + chunk.token * in.gate_stride, in.gate_stride, c);
    block_product<false, true>(2 * c, c, dk, 1.0f, {kq, dk}, {kq, dk}, false, {products, c});
  }

  /// X = Mᵀ (Pᵀ dO + diag(e^(gam_last - gam)) K dS1).
  __device__ void solve() {
    float *const lower = weights, *const p = weights + c * c;
    block_rows(c, c, [&](int64_t at, int64_t i, int64_t j) {
      lower[at] = j <= i ? beta[i] * decays.table[at] * products[at] : 0.0f;
      p[at] = j <= i ? decays.table[at] * products[c * c + at] : 0.0f;
    });
    if (has_d_state) {
      block_product<false, false>(c, dv, dk, 1.0f, {kq, dk}, {d_state, dv}, false, {xo, dv});
      block_rows(c, dv, [&](int64_t at, int64_t i, int64_t) { xo[at] *= decays.end[i]; });
    }
    block_product<true, false>(c, dv, c, 1.0f, {p, c}, {xo + c * dv, dv}, has_d_state, {xo, dv});
    if (!additive) { block_solve_lower_transposed(c, dv, lower, xo); }
  }

  /// What the correction's read of the state contributes, relative to token i's key.
  __device__ float correction(int64_t i) const { return additive ? 0.0f : -beta[i] * decays.start[i]; }

  /// dv = diag(beta) X and dbeta_i = X_i . E_i.
  template <class T>
  __device__ void write_values(T* d_v, int64_t value_stride, float* d_beta, int64_t gate_stride) const {
    block_rows(c, dv, [&](int64_t at, int64_t i, int64_t channel) {
      d_v[i * value_stride + channel] = from_float<T>(beta[i] * xo[at]);
    });
    block_warps(c, [&](int64_t i, int lane) {
      const float dot = warp_dot(dv, xo + i * dv, errors + i * dv, lane);
      if (lane == 0) { d_beta[i * gate_stride] = dot; }
    });
  }

  /// Gradients of K and the scaled Q, and of gam.
  __device__ void differentiate(BlockReducer<double>& reduce) {
    block_product<false, true>(2 * c, c, dv, 1.0f, {xo, dv}, {delta, dv}, false, {weights, c});
    weigh_pairs();
    const bool reads = state != nullptr;
    if (reads) {
      block_product<false, true>(2 * c, dk, dv, 1.0f, {xo, dv}, {const_cast<float*>(state), dv}, false, {d_kq, dk});
      block_rows(2 * c, dk,
                 [&](int64_t at, int64_t i, int64_t) { d_kq[at] *= i < c ? correction(i) : decays.start[i - c]; });
      block_warps(c, [&](int64_t i, int lane) {
        const float dot =
            warp_dot(dk, d_kq + i * dk, kq + i * dk, lane) + warp_dot(dk, d_kq + (c + i) * dk, kq + (c + i) * dk, lane);
        if (lane == 0) { d_gam[i] += static_cast<double>(dot); }
      });
    }
    const Matrix pairs_q{weights + c * c, c};
    block_product<false, false>(c, dk, c, 1.0f, {weights, c}, {kq, dk}, reads, {d_kq, dk});
    block_product<true, false>(c, dk, c, 1.0f, pairs_q, {kq + c * dk, dk}, true, {d_kq, dk});
    block_product<false, false>(c, dk, c, 1.0f, pairs_q, {kq, dk}, reads, {d_kq + c * dk, dk});
    if (has_d_state) { write_state_gradient(reduce); }
  }

  /// dS = e^gam_last dS1 + (diag(e^gam) Q)ᵀ dO - (diag(beta e^gam) K)ᵀ X.
  __device__ void advance() {
    block_rows(2 * c, dk, [&](int64_t at, int64_t i, int64_t) {
      work[at] = kq[at] * (i < c ? correction(i) : decays.start[i - c]);
    });
    if (has_d_state) {
      const float last = decays.last(c);
      block_each(dk * dv, [&](int64_t i) { d_state[i] *= last; });
    }
    block_product<true, false>(dk, dv, 2 * c, 1.0f, {work, dk}, {xo, dv}, has_d_state, {d_state, dv});
    has_d_state = true;
  }

  template <class T> __device__ void write_keys(T* d_q, T* d_k, int64_t stride, float scale, bool accumulate) const {
    block_rows(c, dk, [&](int64_t at, int64_t i, int64_t channel) {
      const int64_t to = i * stride + channel;
      write(d_k[to], d_kq[at], accumulate);
      write(d_q[to], scale * d_kq[c * dk + at], accumulate);
    });
  }

  /// dg_i = sum_{j>=i} dgam_j.
  __device__ void write_gates(float* d_g, int64_t stride) const {
    if (threadIdx.x == 0) {
      double sum = 0;
      for (int64_t i = c - 1; i >= 0; --i) {
        sum += d_gam[i];
        d_g[i * stride] = static_cast<float>(sum);
      }
    }
    __syncthreads();
  }

  /// From [X; dO] deltaᵀ to the weights of pairs: [W + Wᵀ; Pb] with W_ij = beta_i Ab_ij, and the pairs' part of dgam:
  /// row sums minus column sums of G, in double and without the diagonal, which cancels: their rounding would hide what
  /// a strong decay leaves of dg.
  __device__ void weigh_pairs() {
    float *const w = weights, *const pb = weights + c * c;
    block_rows(c, c, [&](int64_t at, int64_t i, int64_t j) {
      w[at] = j < i && !additive ? -beta[i] * decays.table[at] * w[at] : 0.0f;
      pb[at] = j < i ? decays.table[at] * pb[at] : j == i ? pb[at] : 0.0f;
    });
    const auto pair = [&](int64_t i, int64_t j) {
      const int64_t at = i * c + j;
      return static_cast<double>(w[at] * products[at] + pb[at] * products[c * c + at]);
    };
    block_warps(c, [&](int64_t i, int lane) {
      double sum = 0;
      for (int64_t j = lane; j < c; j += 32) { sum += j < i ? pair(i, j) : j > i ? -pair(j, i) : 0.0; }
      sum = warp_sum(sum);
      if (lane == 0) { d_gam[i] = sum; }
    });
    block_rows(c, c, [&](int64_t at, int64_t i, int64_t j) {
      if (j > i) { w[at] = w[j * c + i]; }
    });
  }

  /// The keys' gradient from the state behind the chunk, and dgam of what wrote and kept it.
  __device__ void write_state_gradient(BlockReducer<double>& reduce) {
    block_product<false, true>(c, dk, dv, 1.0f, {delta, dv}, {d_state, dv}, false, {work, dk});
    block_warps(c, [&](int64_t i, int lane) {
      const double share = static_cast<double>(decays.end[i] * warp_dot(dk, kq + i * dk, work + i * dk, lane));
      if (lane == 0) {
        shares[i] = share;
        d_gam[i] -= share;
      }
    });
    block_rows(c, dk, [&](int64_t at, int64_t i, int64_t) { d_kq[at] += decays.end[i] * work[at]; });
    double kept = 0;
    if (state != nullptr) {
      for (int64_t i = threadIdx.x; i < dk * dv; i += kBlockThreads) {
        kept += static_cast<double>(state[i] * d_state[i]);
      }
    }
    kept = reduce.sum(kept);
    if (threadIdx.x == 0) {
      double total = static_cast<double>(decays.last(c)) * kept;
      for (int64_t i = 0; i < c; ++i) { total += shares[i]; }
      d_gam[c - 1] += total;
    }
    __syncthreads();
  }
};

/// States at chunk starts and prediction errors.
template <class T, class D>
__device__ __forceinline__ void recompute(const GatedDeltaBackwardTask<T, D>& a, int64_t row, int64_t head,
                                          float* scratch) {
  ScratchParts parts(scratch);
  ChunkScan scan(parts, a.n, a.longest);
  const HeadInputs<T> in = a.in.head(a.n, head);
  scan.begin_row(nullptr, a.initial != nullptr ? a.initial + head * a.n.state() : nullptr);
  const int64_t end = a.chunks.rows[row + 1];
  for (int64_t i = a.chunks.rows[row]; i < end; ++i) {
    const DeltaChunk chunk = a.chunks.at(i);
    scan.enter(chunk.state < 0);
    scan.solve(in, chunk, 1.0f, !a.additive, false, a.errors_of(chunk, head));
    if (i + 1 < end && a.chunks.at(i + 1).state >= 0) {
      scan.advance(chunk.length, a.start_of(a.chunks.at(i + 1), head));
    }
  }
}

template <class T, class D>
__device__ __forceinline__ void differentiate(const GatedDeltaBackwardTask<T, D>& a, int64_t row, int64_t head,
                                              bool accumulate, float* scratch, BlockReducer<double>& reduce) {
  const DeltaSizes& n = a.n;
  ScratchParts parts(scratch);
  Adjoint adjoint(parts, n, a.longest, a.additive);
  const HeadInputs<T> in = a.in.head(n, head);
  const float* const initial = a.initial != nullptr ? a.initial + head * n.state() : nullptr;
  float* const initial_sum =
      a.initial_sums != nullptr ? a.initial_sums + (row * n.value_heads + head) * n.state() : nullptr;
  if (initial_sum != nullptr) {
    block_each(n.state(), [&](int64_t i) { initial_sum[i] = 0; });
  }
  for (int64_t i = a.chunks.rows[row + 1] - 1; i >= a.chunks.rows[row]; --i) {
    const DeltaChunk chunk = a.chunks.at(i);
    const bool continues = chunk.state >= 0;
    const int64_t value_at = chunk.token * in.value_stride + head * n.value_dim,
                  gate_at = chunk.token * in.gate_stride + head,
                  key_at = chunk.token * in.key_stride + head / n.group() * n.key_dim;
    adjoint.enter(in, chunk, a.scale, continues ? a.start_of(chunk, head) : initial, a.errors_of(chunk, head),
                  a.d_o + value_at);
    adjoint.solve();
    adjoint.write_values(a.d_v + value_at, in.value_stride, a.d_beta + gate_at, in.gate_stride);
    adjoint.differentiate(reduce);
    adjoint.write_keys(a.d_q + key_at, a.d_k + key_at, in.key_stride, a.scale, accumulate);
    adjoint.write_gates(a.d_g + gate_at, in.gate_stride);
    if (continues || initial_sum != nullptr) { adjoint.advance(); }
    if (!continues) {
      if (initial_sum != nullptr) {
        block_each(n.state(), [&](int64_t at) { initial_sum[at] += adjoint.d_state[at]; });
      }
      adjoint.has_d_state = false;
    }
  }
}

// A key head's gradient is the sum over its value heads, in order: they share a block.
template <class T, class D>
__global__ void __launch_bounds__(kBlockThreads) gated_delta_backward_kernel(GatedDeltaBackwardTask<T, D> a) {
  const int64_t row = blockIdx.x / a.n.key_heads, first = blockIdx.x % a.n.key_heads * a.n.group();
  float* const scratch = a.scratch + blockIdx.x * a.scratch_stride;
  BlockReducer<double> reduce;
  for (int64_t head = first; head < first + a.n.group(); ++head) {
    recompute(a, row, head, scratch);
    differentiate(a, row, head, head > first, scratch, reduce);
  }
}

void on_plain_cores(Stream& stream, const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch) {
  const DeltaSizes n(a.k, a.v);
  HEBB_ASSERT(scratch.work.size(0) >= n.batch * n.key_heads);
  dispatch_wide(a.d_o.dtype, a.v.dtype, [&]<class D, class T>(D, T) {
    const GatedDeltaBackwardTask<T, D> b{.n = n,
                                         .in = Inputs<T>(a, n),
                                         .chunks = Chunks(a.grid),
                                         .d_q = a.d_q.as<T>(),
                                         .d_k = a.d_k.as<T>(),
                                         .d_v = a.d_v.as<T>(),
                                         .d_g = a.d_g.as<float>(),
                                         .d_beta = a.d_beta.as<float>(),
                                         .starts = scratch.starts.as<float>(),
                                         .errors = scratch.errors.as<float>(),
                                         .initial_sums = scratch.initial_sums.as<float>(),
                                         .scratch = scratch.work.as<float>(),
                                         .d_o = a.d_o.as<D>(),
                                         .initial = a.initial_state.as<float>(),
                                         .scratch_stride = scratch.work.size(1),
                                         .longest = a.grid.longest,
                                         .scale = static_cast<float>(a.scale),
                                         .additive = a.additive};
    HEBB_LAUNCH((gated_delta_backward_kernel<T, D>), blocks_for(n.batch * n.key_heads, 1), kBlockThreads, 0, stream, b);
  });
}

/// from = high + low, to 16 bits.
struct SplitNumbers {
  bf16 *high, *low;
  const float* from;
  int64_t channels;

  __device__ void operator()(int64_t token, int64_t pack) const {
    constexpr int kNumbers = kPack<bf16>;
    const int64_t at = token * channels, c = pack * kNumbers;
    float value[kNumbers];
    load_pack(value, from + at, c, channels, true);
    store_pack(high + at, c, channels, true, value);
    HEBB_UNROLL
    for (int j = 0; j < kNumbers; ++j) { value[j] -= to_float(from_float<bf16>(value[j])); }
    store_pack(low + at, c, channels, true, value);
  }
};

/// Gradients are linear in d_o: those of its two parts, one after the other, are added.
void in_two_parts(Stream& stream, const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch) {
  const Tensor high = scratch.parts.slice(0, a.d_o.shape), low = scratch.parts.slice(a.d_o.numel(), a.d_o.shape);
  const int64_t tokens = a.d_o.size(0) * a.d_o.size(1), channels = a.d_o.numel() / tokens;
  each_element("delta_split", stream, tokens, channels / kPack<bf16>,
               SplitNumbers{high.as<bf16>(), low.as<bf16>(), a.d_o.as<float>(), channels});
  GatedDeltaBackward part = a;
  part.d_o = high;
  delta_mma::backward(stream, part, scratch, true);
  add_column_sums(stream, a.d_initial_state, scratch.initial_sums, a.k.size(0));
  part.d_o = low;
  part.d_q = scratch.d_q;
  part.d_k = scratch.d_k;
  part.d_v = scratch.d_v;
  part.d_g = scratch.d_g;
  part.d_beta = scratch.d_beta;
  delta_mma::backward(stream, part, scratch, false);
  for (Tensor GatedDeltaBackward::*gradient :
       {&GatedDeltaBackward::d_q, &GatedDeltaBackward::d_k, &GatedDeltaBackward::d_v, &GatedDeltaBackward::d_g,
        &GatedDeltaBackward::d_beta}) {
    HEBB_DEVICE::run(stream, AddScaled{.y = a.*gradient, .x = part.*gradient, .alpha = 1, .accumulate = true});
  }
}

}  // namespace

void run(Stream& stream, const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch) {
  if (scratch.parts.defined()) {
    in_two_parts(stream, a, scratch);
  } else if (scratch.adjoints.defined()) {
    delta_mma::backward(stream, a, scratch, true);
  } else {
    on_plain_cores(stream, a, scratch);
  }
  add_column_sums(stream, a.d_initial_state, scratch.initial_sums, a.k.size(0));
}

}  // namespace hebb::HEBB_DEVICE
