#include "kernels/common/cuda/dispatch_wide.cuh"
#include "kernels/gated_delta/chunk_scan.cuh"
#include "kernels/gated_delta/mma.cuh"

// One block a row and value head scans its chunks; the matrices of a chunk lie in global scratch (0.3 MB at 64
// tokens and heads of 128) and are served by L1 and L2. FLOPs of a chunk of C: 2 C (2 C dk + 3 dk dv + 2 C dv). Bound:
// fp32 multiply-adds of the B HV blocks that exist, and the latency of about 40 barriers' worth of small products a
// chunk; in bf16 tensor cores do it (mma_forward.cu).
namespace hebb::HEBB_DEVICE {
namespace {

using namespace delta;

template <class T, class O> struct GatedDeltaForwardTask {
  DeltaSizes n;
  Inputs<T> in;
  Chunks chunks;
  O* o;
  T* prediction;
  float *state, *scratch;
  const float* initial;
  const int32_t* doc_start;
  int64_t scratch_stride, longest;
  float scale;
  bool additive;
};

/// p_i = e^gam_{i-1} k_i S + sum_{j<i} e^(gam_{i-1} - gam_j) (k_i . k_j) delta_j (docs/layers/ham.md, Prediction in
/// chunks); overwrites the keys' reads.
template <class T>
__device__ __forceinline__ void write_prediction(const ChunkScan& scan, int64_t c, T* p, int64_t stride) {
  const int64_t dv = scan.dv;
  block_rows(c, c, [&](int64_t at, int64_t i, int64_t j) {
    scan.lower[at] = j < i ? scan.decays.table[(i - 1) * c + j] * scan.products[at] : 0.0f;
  });
  if (scan.has_state) {
    block_rows(c, dv,
               [&](int64_t at, int64_t i, int64_t) { scan.read[at] *= i == 0 ? 1.0f : scan.decays.start[i - 1]; });
  }
  block_product<false, false>(c, dv, c, 1.0f, {scan.lower, c}, {scan.delta, dv}, scan.has_state, {scan.read, dv});
  block_rows(c, dv,
             [&](int64_t at, int64_t i, int64_t channel) { p[i * stride + channel] = from_float<T>(scan.read[at]); });
}

/// o = diag(e^gam) Q S + P delta, P_ij = D_ij (q_i . k_j), j <= i; overwrites the queries' reads.
template <class O>
__device__ __forceinline__ void write_output(const ChunkScan& scan, int64_t c, O* o, int64_t stride) {
  const int64_t dv = scan.dv;
  float *const p = scan.products + c * c, *const out = scan.read + c * dv;
  block_rows(c, c, [&](int64_t at, int64_t i, int64_t j) { p[at] = j <= i ? p[at] * scan.decays.table[at] : 0.0f; });
  if (scan.has_state) {
    block_rows(c, dv, [&](int64_t at, int64_t i, int64_t) { out[at] *= scan.decays.start[i]; });
  }
  block_product<false, false>(c, dv, c, 1.0f, {p, c}, {scan.delta, dv}, scan.has_state, {out, dv});
  block_rows(c, dv, [&](int64_t at, int64_t i, int64_t channel) { o[i * stride + channel] = from_float<O>(out[at]); });
}

template <class T, class O>
__global__ void __launch_bounds__(kBlockThreads) gated_delta_forward_kernel(GatedDeltaForwardTask<T, O> a) {
  const DeltaSizes& n = a.n;
  const int64_t task = blockIdx.x, row = task / n.value_heads, head = task % n.value_heads,
                stride = n.value_heads * n.value_dim;
  ScratchParts parts(a.scratch + task * a.scratch_stride);
  ChunkScan scan(parts, n, a.longest);
  const HeadInputs<T> in = a.in.head(n, head);
  scan.begin_row(a.state != nullptr ? a.state + task * n.state() : nullptr,
                 a.initial != nullptr ? a.initial + head * n.state() : nullptr);
  const auto begins = [&](const DeltaChunk& chunk) { return a.doc_start[chunk.token] == chunk.token - row * n.length; };
  const int64_t end = a.chunks.rows[row + 1];
  for (int64_t i = a.chunks.rows[row]; i < end; ++i) {
    const DeltaChunk chunk = a.chunks.at(i);
    scan.enter(begins(chunk));
    scan.solve(in, chunk, a.scale, !a.additive, true, scan.own_errors);
    const int64_t at = chunk.token * stride + head * n.value_dim;
    if (a.prediction != nullptr) { write_prediction(scan, chunk.length, a.prediction + at, stride); }
    write_output(scan, chunk.length, a.o + at, stride);
    if (i + 1 == end ? a.state != nullptr : !begins(a.chunks.at(i + 1))) { scan.advance(chunk.length, scan.state); }
  }
}

// Token by token: a thread holds one value channel of a head's state. HBM: the state twice in and once out a token.
template <class T, class O> struct Steps {
  DeltaSizes n;
  Inputs<T> in;
  O* o;
  T* prediction;
  float* state;
  const float* initial;
  const int32_t* doc_start;
  float scale;
  bool additive;

  __device__ void operator()(int64_t task, int64_t c) const {
    const int64_t row = task / n.value_heads, head = task % n.value_heads, dk = n.key_dim, dv = n.value_dim;
    const HeadInputs<T> inputs = in.head(n, head);
    float* const s = state + task * n.state() + c;
    for (int64_t t = 0; t < n.length; ++t) {
      const int64_t i = row * n.length + t;
      if (doc_start[i] == t) {
        for (int64_t a = 0; a < dk; ++a) {
          s[a * dv] = initial != nullptr ? initial[head * n.state() + a * dv + c] : 0.0f;
        }
      }
      const T *q = inputs.q + i * inputs.key_stride, *k = inputs.k + i * inputs.key_stride;
      float predicted = 0, answer = 0, match = 0;
      for (int64_t a = 0; a < dk; ++a) {
        const float key = to_float(k[a]), query = to_float(q[a]);
        predicted += key * s[a * dv];
        answer += query * s[a * dv];
        match += key * query;
      }
      const float alpha = expf(inputs.g[i * inputs.gate_stride]);
      const float value = to_float(inputs.v[i * inputs.value_stride + c]);
      const float written = inputs.beta[i * inputs.gate_stride] * (additive ? value : value - alpha * predicted);
      for (int64_t a = 0; a < dk; ++a) { s[a * dv] = alpha * s[a * dv] + to_float(k[a]) * written; }
      const int64_t at = i * inputs.value_stride + head * dv + c;
      o[at] = from_float<O>(scale * (alpha * answer + match * written));
      if (prediction != nullptr) { prediction[at] = from_float<T>(predicted); }
    }
  }
};

}  // namespace

void run(Stream& stream, const GatedDeltaForward& a, const GatedDeltaForwardScratch& scratch) {
  const DeltaSizes n(a.k, a.v);
  HEBB_ASSERT(scratch.work.size(0) >= n.batch * n.value_heads);
  if (scratch.on_tensor_cores) {
    delta_mma::forward(stream, a);
    return;
  }
  dispatch_wide(a.o.dtype, a.v.dtype, [&]<class O, class T>(O, T) {
    const GatedDeltaForwardTask<T, O> f{.n = n,
                                        .in = Inputs<T>(a, n),
                                        .chunks = Chunks(a.grid),
                                        .o = a.o.as<O>(),
                                        .prediction = a.prediction.as<T>(),
                                        .state = a.state.as<float>(),
                                        .scratch = scratch.work.as<float>(),
                                        .initial = a.initial_state.as<float>(),
                                        .doc_start = a.doc_start.as<int32_t>(),
                                        .scratch_stride = scratch.work.size(1),
                                        .longest = a.grid.longest,
                                        .scale = static_cast<float>(a.scale),
                                        .additive = a.additive};
    HEBB_LAUNCH((gated_delta_forward_kernel<T, O>), blocks_for(n.batch * n.value_heads, 1), kBlockThreads, 0, stream,
                f);
  });
}

void run(Stream& stream, const GatedDeltaSteps& a) {
  const DeltaSizes n(a.k, a.v);
  dispatch_wide(a.o.dtype, a.v.dtype, [&]<class O, class T>(O, T) {
    each_element(
        "gated_delta_steps", stream, n.batch * n.value_heads, n.value_dim,
        Steps<T, O>{n, Inputs<T>(a, n), a.o.as<O>(), a.prediction.as<T>(), a.state.as<float>(),
                    a.initial_state.as<float>(), a.doc_start.as<int32_t>(), static_cast<float>(a.scale), a.additive});
  });
}

}  // namespace hebb::HEBB_DEVICE
