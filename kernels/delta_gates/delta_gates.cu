#include "kernels/delta_gates/delta_gates.h"

#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/common/cuda/fast_divide.cuh"
#include "kernels/delta_gates/scratch.h"

// Bound by HBM: 4 numbers a token and head forward, 8 backward. g and beta are fp32: they enter exponents.
namespace hebb::HEBB_DEVICE {
namespace {

// Column: token and head; there are too few heads for a block a token.
template <class T> struct DeltaGatesForwardBody {
  float *g, *beta;
  const T *a, *b;
  const float *a_log, *dt_bias;
  int64_t heads;
  float beta_scale, dt_low, dt_high;

  __device__ void operator()(int64_t, int64_t at) const {
    const int64_t head = Split(at, heads).remainder;
    const float z = to_float(a[at]) + dt_bias[head];
    float dt = softplus(z);
    dt = b != nullptr ? dt : fminf(dt_high, fmaxf(dt_low, dt));
    g[at] = -expf(a_log[head]) * dt;
    beta[at] = b != nullptr ? beta_scale * sigmoid(to_float(b[at])) : dt;
  }
};

// Row: block of tokens and head. A lane takes every 32nd token, so that the loads of a block are under way together;
// the warps of a thread block are neighbouring heads, which share the lines of their tokens.
template <class T> struct DeltaGatesBackwardBody {
  T *d_a, *d_b;
  float* partial;
  const float *d_g, *d_beta, *g, *beta;
  const T* a;
  const float *a_log, *dt_bias;
  int64_t tokens, heads;
  float inverse_scale, dt_low, dt_high;
  bool b_is_step, accumulate_a, accumulate_b;

  __device__ void operator()(int64_t row, int lane) const {
    const Split item(row, heads);
    const int64_t block = item.quotient, head = item.remainder;
    const int64_t last = DeltaGatesBlocks::end(block, tokens);
    const float rate = -expf(a_log[head]), bias = dt_bias[head];
    float sum_log = 0, sum_bias = 0;
    for (int64_t token = DeltaGatesBlocks::begin(block) + lane; token < last; token += 32) {
      const int64_t at = token * heads + head;
      const float z = to_float(a[at]) + bias;
      float d_dt = d_g[at] * rate;
      if (b_is_step) {
        const float dt = softplus(z);
        d_dt = dt < dt_low || dt > dt_high ? 0.0f : d_dt + d_beta[at];
      }
      const float d_z = d_dt * sigmoid(z);
      sum_log += d_g[at] * g[at];
      sum_bias += d_z;
      if (d_a != nullptr) { write(d_a[at], d_z, accumulate_a); }
      if (d_b != nullptr) { write(d_b[at], d_beta[at] * beta[at] * (1.0f - beta[at] * inverse_scale), accumulate_b); }
    }
    sum_log = warp_sum(sum_log);
    sum_bias = warp_sum(sum_bias);
    if (lane == 0) {
      partial[block * 2 * heads + head] = sum_log;
      partial[(block * 2 + 1) * heads + head] = sum_bias;
    }
  }
};

}  // namespace

void run(Stream& stream, const DeltaGatesForward& a) {
  const int64_t heads = a.a_log.numel();
  dispatch_float(a.a.dtype, [&]<class T>(T) {
    each_element(
        "delta_gates_forward", stream, 1, a.a.numel(),
        DeltaGatesForwardBody<T>{a.g.as<float>(), a.beta.as<float>(), a.a.as<T>(), a.b.as<T>(), a.a_log.as<float>(),
                                 a.dt_bias.as<float>(), heads, static_cast<float>(a.beta_scale),
                                 static_cast<float>(a.dt_low), static_cast<float>(a.dt_high)});
  });
}

void run(Stream& stream, const DeltaGatesBackward& a, const DeltaGatesBackwardScratch& scratch) {
  const int64_t heads = a.a_log.numel(), tokens = a.a.numel() / heads, blocks = DeltaGatesBlocks::count(tokens);
  float* const partial = scratch.partial.as<float>();
  dispatch_float(a.a.dtype, [&]<class T>(T) {
    each_warp("delta_gates_backward", stream, blocks * heads,
              DeltaGatesBackwardBody<T>{.d_a = a.d_a.as<T>(),
                                        .d_b = a.d_b.as<T>(),
                                        .partial = partial,
                                        .d_g = a.d_g.as<float>(),
                                        .d_beta = a.d_beta.as<float>(),
                                        .g = a.g.as<float>(),
                                        .beta = a.beta.as<float>(),
                                        .a = a.a.as<T>(),
                                        .a_log = a.a_log.as<float>(),
                                        .dt_bias = a.dt_bias.as<float>(),
                                        .tokens = tokens,
                                        .heads = heads,
                                        .inverse_scale = static_cast<float>(1.0 / a.beta_scale),
                                        .dt_low = static_cast<float>(a.dt_low),
                                        .dt_high = static_cast<float>(a.dt_high),
                                        .b_is_step = a.b_is_step,
                                        .accumulate_a = a.accumulate_a,
                                        .accumulate_b = a.accumulate_b});
  });
  add_column_sums(stream, a.d_a_log, partial, blocks, 2 * heads);
  add_column_sums(stream, a.d_dt_bias, partial + heads, blocks, 2 * heads);
}

}  // namespace hebb::HEBB_DEVICE
