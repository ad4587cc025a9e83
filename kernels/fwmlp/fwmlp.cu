#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/fwmlp/scratch.h"
#include "kernels/fwpkm/fast_chunk.cuh"
#include "kernels/gemm/gemm.h"

// Dense products of R = B count rows of fp32 by the library (6, 12 and at most 36 hidden key_dim FLOPs a token for
// reading, step and backward; bound by those), with elementwise kernels between them: HBM, their operands once. With
// bf16 tokens the library may round operands to TF32 (docs/layers/fwmlp.md, Precision), with fp32 ones only where
// allow_tf32 says so. The published model (3 layers of 512 x 512 x 512, chunks of 512) on 8 x 4,096 tokens: 1.4 TFLOP a
// step with its backward pass.
namespace hebb::HEBB_DEVICE {
namespace {

/// Products of fp32, whose operands are rounded to TF32 where the tokens are bf16.
struct Products {
  Stream& stream;
  bool tf32;

  /// c [m, n] (+)= a [m, k] b, b [k, n] or, transposed, [n, k].
  void times(int64_t m, int64_t n, int64_t k, const Tensor& a, const Tensor& b, bool transposed, bool accumulate,
             const Tensor& c) const {
    multiply({.c = c, .a = a, .b = b, .m = m, .n = n, .k = k, .trans_b = transposed, .accumulate = accumulate});
  }
  /// c [m, n] (+)= aT b over `rows` rows: the gradient of a weight.
  void outer(int64_t m, int64_t n, int64_t rows, const Tensor& a, const Tensor& b, bool accumulate,
             const Tensor& c) const {
    multiply({.c = c, .a = a, .b = b, .m = m, .n = n, .k = rows, .trans_a = true, .accumulate = accumulate});
  }

 private:
  void multiply(Gemm gemm) const {
    gemm.tf32 = tf32;
    HEBB_DEVICE::run(stream, gemm);
  }
};

template <class T> Products products(Stream& stream) { return {stream, std::is_same_v<T, bf16>}; }

/// to [n] (+)= the sum of the rows of a [rows, n].
void sum_rows(Stream& stream, int64_t rows, int64_t n, const Tensor& a, bool accumulate, const Tensor& to) {
  if (!accumulate) { zero_bytes(stream, to.data, to.bytes()); }
  add_column_sums(stream, to.as<float>(), 1, {a.data, DType::f32, rows, n, n});
}

/// The pieces of one flat tensor of weights.
struct Weights {
  Tensor in, b_in, down, b_down;

  Weights(const Tensor& flat, const FwmlpSizes& s)
      : in(flat.slice(0, {s.b_up()})),
        b_in(flat.slice(s.b_up(), {2 * s.hidden})),
        down(flat.slice(s.w_down(), {s.value_dim * s.hidden})),
        b_down(flat.slice(s.b_down(), {s.value_dim})) {}
};

// Rows of the function objects below are the chunk's tokens r, unless they say otherwise.

template <class T> struct Gather {
  float* q;
  const T* tokens_q;
  FastChunk chunk;
  int64_t width;

  __device__ void operator()(int64_t r, int64_t c) const {
    q[r * width + c] = to_float(tokens_q[token_of(chunk, r) * width + c]);
  }
};

struct Activate {
  float *act, *hid;
  const float* bias;
  int64_t hidden;

  __device__ void operator()(int64_t r, int64_t i) const {
    float *const up = act + r * 2 * hidden + i, *const gate = up + hidden;
    *up += bias[i];
    *gate += bias[hidden + i];
    hid[r * hidden + i] = *up * *gate * sigmoid(*gate);
  }
};

/// to[token] = or += from[r] + bias (null: none).
template <class T> struct ToTokens {
  T* to;
  const float *from, *bias;
  FastChunk chunk;
  int64_t width;
  bool accumulate;

  __device__ void operator()(int64_t r, int64_t c) const {
    const float value = from[r * width + c] + (bias != nullptr ? bias[c] : 0.0f);
    write(to[token_of(chunk, r) * width + c], value, accumulate);
  }
};

template <class T> struct Pairs {
  const T *v, *vh;
  const int32_t* targets;
  FastChunk chunk;
  int64_t width, lookahead;
  float scale;  // of derivatives
  bool mean;

  /// Values that a target is the mean of.
  __device__ float share() const { return mean ? 1.0f / static_cast<float>(lookahead + 1) : 1.0f; }
};

template <class T> struct Residual {
  float* residual;
  Pairs<T> in;

  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t t = token_of(in.chunk, r), target = in.targets[t];
    float sum = 0;
    if (target >= 0) {
      for (int64_t i = in.mean ? t : target; i <= target; ++i) { sum += to_float(in.v[i * in.width + c]); }
      sum = in.scale * (to_float(in.vh[t * in.width + c]) - in.share() * sum);
    }
    residual[r * in.width + c] = sum;
  }
};

struct ActivationGradient {
  float* d_act;
  const float *d_hid, *act;
  int64_t hidden;

  __device__ void operator()(int64_t r, int64_t i) const {
    const int64_t up = r * 2 * hidden + i, gate = up + hidden;
    const Silu<float> silu(act[gate]);
    const float d = d_hid[r * hidden + i];
    d_act[up] = d * silu.value;
    d_act[gate] = d * act[up] * silu.first;
  }
};

// Flat elements of the weights; NaN stays NaN.
struct Step {
  float* next;
  const float *weights, *gradient;
  float rate, clip;

  __device__ void operator()(int64_t, int64_t i) const {
    const float g = gradient[i];
    next[i] = weights[i] - rate * (g < -clip ? -clip : g > clip ? clip : g);
  }
};

struct Direction {
  float* tangent;
  const float *gradient, *d_next;
  float rate, clip;

  __device__ void operator()(int64_t, int64_t i) const {
    tangent[i] = clip == INFINITY || fabsf(gradient[i]) < clip ? -rate * d_next[i] : 0.0f;
  }
};

/// What later chunks want of the weights; null: nothing.
struct Hand {
  float* d_weights;
  const float* d_next;

  __device__ void operator()(int64_t, int64_t i) const { d_weights[i] = d_next != nullptr ? d_next[i] : 0.0f; }
};

struct Tangent {
  float *t_act, *t_hid;
  const float *act, *bias;
  int64_t hidden;

  __device__ void operator()(int64_t r, int64_t i) const {
    const int64_t up = r * 2 * hidden + i, gate = up + hidden;
    const Silu<float> silu(act[gate]);
    const float along_up = t_act[up] + bias[i], along_gate = t_act[gate] + bias[hidden + i];
    t_act[up] = along_up;
    t_act[gate] = along_gate;
    t_hid[r * hidden + i] = along_up * silu.value + act[up] * silu.first * along_gate;
  }
};

/// d_v of token r: minus the shares of the tokens, in their order, whose target it is part of. y is the tangent of vh
/// but for `bias`.
template <class T> struct TargetGradient {
  T* d_v;
  const float *y, *bias;
  Pairs<T> in;

  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t own = token_of(in.chunk, r);
    const int64_t earliest = r % in.chunk.count < in.lookahead ? own - r % in.chunk.count : own - in.lookahead;
    float sum = 0;
    for (int64_t t = earliest; t <= own; ++t) {
      if (in.mean ? in.targets[t] >= own : in.targets[t] == own) {
        sum += y[local_of(in.chunk, t) * in.width + c] + bias[c];
      }
    }
    const float d = in.scale * in.share() * sum;
    d_v[own * in.width + c] = from_float<T>(to_float(d_v[own * in.width + c]) - d);
  }
};

/// y = the gradient of vh: through the pairs (bias not null) and directly.
template <class T> struct OutputGradient {
  float* y;
  const float* bias;
  const T* d_vh;
  Pairs<T> in;

  __device__ void operator()(int64_t r, int64_t c) const {
    const int64_t t = token_of(in.chunk, r), at = r * in.width + c;
    const float through = bias != nullptr && in.targets[t] >= 0 ? in.scale * (y[at] + bias[c]) : 0.0f;
    y[at] = through + to_float(d_vh[t * in.width + c]);
  }
};

struct SecondOrder {
  float *d_act, *d_tact;
  const float *d_hid, *d_thid, *act, *t_act;
  int64_t hidden;

  __device__ void operator()(int64_t r, int64_t i) const {
    const int64_t up = r * 2 * hidden + i, gate = up + hidden;
    const Silu<float> silu(act[gate]);
    const float d = d_hid[r * hidden + i], along = d_thid[r * hidden + i];
    d_act[up] = d * silu.value + along * silu.first * t_act[gate];
    d_act[gate] = d * act[up] * silu.first + along * (t_act[up] * silu.first + act[up] * silu.second * t_act[gate]);
    d_tact[up] = along * silu.value;
    d_tact[gate] = along * act[up] * silu.first;
  }
};

template <class T>
Pairs<T> pairs_of(const FwmlpPairs& p, const Tensor& vh, const FastChunk& chunk, const FwmlpSizes& s) {
  const double pairs = static_cast<double>(p.count > 0 ? p.count : 1);
  return {p.v.as<T>(),
          vh.as<T>(),
          p.targets.as<int32_t>(),
          chunk,
          s.value_dim,
          p.lookahead,
          static_cast<float>(2.0 / (pairs * static_cast<double>(s.value_dim))),
          p.mean};
}

float clip_of(double clip) { return clip > 0 ? static_cast<float>(clip) : INFINITY; }

template <class T> void read(Stream& stream, const FwmlpRead& a, const Tensor& out) {
  const Products product = products<T>(stream);
  const FwmlpSizes& s = a.sizes;
  const int64_t rows = a.chunk.tokens();
  const Weights w(a.weights, s);
  each_element("fwmlp_gather", stream, rows, s.key_dim,
               Gather<T>{a.kept.q.as<float>(), a.tokens_q.as<T>(), a.chunk, s.key_dim});
  product.times(rows, 2 * s.hidden, s.key_dim, a.kept.q, w.in, true, false, a.kept.act);
  each_element("fwmlp_activate", stream, rows, s.hidden,
               Activate{a.kept.act.as<float>(), a.kept.hid.as<float>(), w.b_in.as<float>(), s.hidden});
  product.times(rows, s.value_dim, s.hidden, a.kept.hid, w.down, true, false, out);
  each_element("fwmlp_reading", stream, rows, s.value_dim,
               ToTokens<T>{a.vh.as<T>(), out.as<float>(), w.b_down.as<float>(), a.chunk, s.value_dim, false});
}

template <class T> void step(Stream& stream, const FwmlpStep& a, const FwmlpStepScratch& scratch) {
  const Products product = products<T>(stream);
  const FwmlpSizes& s = a.sizes;
  const int64_t rows = a.chunk.tokens(), h = s.hidden;
  const Weights w(a.weights, s), g(a.gradient, s);
  each_element("fwmlp_residual", stream, rows, s.value_dim,
               Residual<T>{scratch.residual.as<float>(), pairs_of<T>(a.pairs, a.vh, a.chunk, s)});
  product.outer(s.value_dim, h, rows, scratch.residual, a.kept.hid, false, g.down);
  sum_rows(stream, rows, s.value_dim, scratch.residual, false, g.b_down);
  product.times(rows, h, s.value_dim, scratch.residual, w.down, false, false, scratch.d_hid);
  each_element("fwmlp_d_act", stream, rows, h,
               ActivationGradient{scratch.d_act.as<float>(), scratch.d_hid.as<float>(), a.kept.act.as<float>(), h});
  product.outer(2 * h, s.key_dim, rows, scratch.d_act, a.kept.q, false, g.in);
  sum_rows(stream, rows, 2 * h, scratch.d_act, false, g.b_in);
  each_element("fwmlp_step", stream, 1, s.total(),
               Step{a.next.as<float>(), a.weights.as<float>(), a.gradient.as<float>(), static_cast<float>(a.rate),
                    clip_of(a.clip)});
}

/// One call of FwmlpBackward.
template <class T> struct FwmlpBackwardTask {
  Stream& stream;
  const FwmlpBackward& a;
  const FwmlpBackwardScratch& scratch;
  Products product = products<T>(stream);
  const FwmlpSizes& s = a.sizes;
  int64_t rows = a.chunk.tokens(), h = s.hidden, dv = s.value_dim;
  bool second = a.d_next.defined();
  Weights w{a.weights, s};
  Pairs<T> pairs = pairs_of<T>(a.pairs, a.vh, a.chunk, s);

  /// X = -rate d_next where the step was not clipped, and the derivatives along it: t_act, t_hid, and y, that of vh but
  /// for x's b_down.
  void tangents(const Weights& x) {
    each_element("fwmlp_residual", stream, rows, dv, Residual<T>{scratch.residual.as<float>(), pairs});
    each_element("fwmlp_direction", stream, 1, s.total(),
                 Direction{scratch.tangent.as<float>(), a.gradient.as<float>(), a.d_next.as<float>(),
                           static_cast<float>(a.rate), clip_of(a.clip)});
    product.times(rows, 2 * h, s.key_dim, a.kept.q, x.in, true, false, scratch.t_act);
    each_element(
        "fwmlp_tangent", stream, rows, h,
        Tangent{scratch.t_act.as<float>(), scratch.t_hid.as<float>(), a.kept.act.as<float>(), x.b_in.as<float>(), h});
    product.times(rows, dv, h, scratch.t_hid, w.down, true, false, scratch.y);
    product.times(rows, dv, h, a.kept.hid, x.down, true, true, scratch.y);
    each_element("fwmlp_d_v", stream, rows, dv,
                 TargetGradient<T>{a.d_v.as<T>(), scratch.y.as<float>(), x.b_down.as<float>(), pairs});
  }
  void to_activations(const float* x_bias) {
    each_element("fwmlp_d_vh", stream, rows, dv,
                 OutputGradient<T>{scratch.y.as<float>(), x_bias, a.d_vh.as<T>(), pairs});
    product.times(rows, h, dv, scratch.y, w.down, false, false, scratch.d_hid);
    if (!second) {
      each_element("fwmlp_d_act", stream, rows, h,
                   ActivationGradient{scratch.d_act.as<float>(), scratch.d_hid.as<float>(), a.kept.act.as<float>(), h});
      return;
    }
    product.times(rows, h, dv, scratch.residual, Weights(scratch.tangent, s).down, false, true, scratch.d_hid);
    product.times(rows, h, dv, scratch.residual, w.down, false, false, scratch.d_thid);
    each_element("fwmlp_second_order", stream, rows, h,
                 SecondOrder{scratch.d_act.as<float>(), scratch.d_tact.as<float>(), scratch.d_hid.as<float>(),
                             scratch.d_thid.as<float>(), a.kept.act.as<float>(), scratch.t_act.as<float>(), h});
  }
  void to_queries() {
    product.times(rows, s.key_dim, 2 * h, scratch.d_act, w.in, false, false, scratch.d_local);
    if (second) {
      product.times(rows, s.key_dim, 2 * h, scratch.d_tact, Weights(scratch.tangent, s).in, false, true,
                    scratch.d_local);
    }
    each_element("fwmlp_d_q", stream, rows, s.key_dim,
                 ToTokens<T>{a.d_q.as<T>(), scratch.d_local.as<float>(), nullptr, a.chunk, s.key_dim, a.accumulate});
  }
  void to_weights() {
    const Weights d(a.d_weights, s);
    each_element("fwmlp_hand", stream, 1, s.total(), Hand{a.d_weights.as<float>(), a.d_next.as<float>()});
    if (second) { product.outer(dv, h, rows, scratch.residual, scratch.t_hid, true, d.down); }
    product.outer(dv, h, rows, scratch.y, a.kept.hid, true, d.down);
    sum_rows(stream, rows, dv, scratch.y, true, d.b_down);
    product.outer(2 * h, s.key_dim, rows, scratch.d_act, a.kept.q, true, d.in);
    sum_rows(stream, rows, 2 * h, scratch.d_act, true, d.b_in);
  }
};

}  // namespace

void run(Stream& stream, const FwmlpRead& a, const FwmlpReadScratch& scratch) {
  dispatch_float(a.vh.dtype, [&]<class S>(S) { read<S>(stream, a, scratch.out); });
}

void run(Stream& stream, const FwmlpStep& a, const FwmlpStepScratch& scratch) {
  dispatch_float(a.vh.dtype, [&]<class S>(S) { step<S>(stream, a, scratch); });
}

void run(Stream& stream, const FwmlpBackward& a, const FwmlpBackwardScratch& scratch) {
  dispatch_float(a.vh.dtype, [&]<class T>(T) {
    FwmlpBackwardTask<T> b{stream, a, scratch};
    if (b.second) { b.tangents(Weights(scratch.tangent, a.sizes)); }
    b.to_activations(b.second ? Weights(scratch.tangent, a.sizes).b_down.template as<float>() : nullptr);
    b.to_queries();
    if (a.d_weights.defined()) { b.to_weights(); }
  });
}

}  // namespace hebb::HEBB_DEVICE
