#include "kernels/head_norm.h"

#include <algorithm>

#include "kernels/cuda/common/column_sums.h"

// One warp a head; what is read twice comes from L1 the second time. Bound by HBM: 2 and 3 passes, gated 3 and 5.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kL2Eps = 1e-6f;

template <class T>
__device__ __forceinline__ float sum_squares(const T* x, int64_t count, int lane) {
  float sum = 0;
  for (int64_t c = lane; c < count; c += 32) {
    const float v = to_float(x[c]);
    sum += v * v;
  }
  return warp_sum(sum);
}

template <class T>
struct L2Forward {
  T* n;
  float* scale;
  const T* x;
  int64_t width;

  __device__ void operator()(int64_t head, int lane) const {
    const T* const in = x + head * width;
    const float s = 1.0f / sqrtf(sum_squares(in, width, lane) + kL2Eps);
    for (int64_t c = lane; c < width; c += 32) {
      n[head * width + c] = from_float<T>(to_float(in[c]) * s);
    }
    if (lane == 0) {
      scale[head] = s;
    }
  }
};

template <class T>
struct L2Backward {
  T* d_x;
  const T *d_n, *n;
  const float* scale;
  int64_t width;
  bool accumulate;

  __device__ void operator()(int64_t head, int lane) const {
    float along = 0;
    for (int64_t at = head * width + lane; at < (head + 1) * width; at += 32) {
      along += to_float(n[at]) * to_float(d_n[at]);
    }
    along = warp_sum(along);
    for (int64_t at = head * width + lane; at < (head + 1) * width; at += 32) {
      write(d_x[at], scale[head] * (to_float(d_n[at]) - to_float(n[at]) * along), accumulate);
    }
  }
};

struct Gate {
  float value, slope;
};

__device__ __forceinline__ Gate gate_at(HeadGate kind, float z) {
  const float s = sigmoid(z);
  return kind == HeadGate::silu ? Gate{z * s, s * (1.0f + z * (1.0f - s))} : Gate{s, s * (1.0f - s)};
}

/// What forward and backward share: r, the tensor that is normed, is o or, gated first, o * gate. O: type of o, T: of all else.
template <class O, class T>
struct GatedHeads {
  const O* o;
  const T* z;
  const float* weight;
  int64_t width, heads;  // heads: of a token
  float eps;
  HeadGate gate;
  bool gate_first, by_channel;  // by_channel: a weight for each channel of all heads

  __device__ bool gates_before() const { return gate_first && z != nullptr; }
  __device__ bool gates_after() const { return !gate_first && z != nullptr; }
  __device__ Gate gate_of(int64_t at) const { return gate_at(gate, to_float(z[at])); }
  __device__ float r(int64_t at) const { return gates_before() ? to_float(o[at]) * gate_of(at).value : to_float(o[at]); }
  __device__ int64_t weights_from(int64_t head) const { return by_channel ? head % heads * width : 0; }
  __device__ float rstd(int64_t head, int lane) const {
    float squares = 0;
    for (int64_t at = head * width + lane; at < (head + 1) * width; at += 32) {
      squares += r(at) * r(at);
    }
    return 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
  }
};

template <class O, class T>
struct GatedForward {
  T* y;
  GatedHeads<O, T> in;

  __device__ void operator()(int64_t head, int lane) const {
    const bool normed = in.weight != nullptr;
    float rstd = 1;
    if (normed) {
      rstd = in.rstd(head, lane);
    }
    for (int64_t c = lane; c < in.width; c += 32) {
      const int64_t at = head * in.width + c;
      const float v = in.r(at) * rstd * (normed ? in.weight[in.weights_from(head) + c] : 1.0f);
      y[at] = from_float<T>(in.gates_after() ? v * in.gate_of(at).value : v);
    }
  }
};

template <class O, class T>
struct GatedBackward {
  O* d_o;
  T* d_z;
  float* partial;
  const T* d_y;
  GatedHeads<O, T> in;
  int64_t tokens;
  bool accumulate_o, accumulate_z;
};

constexpr int kWarps = 8;
constexpr int64_t kBlock = 64;  // tokens of one partial sum, as in gated_norm_blocks

/// One head: d_z, d_o and, added to sums [width], the weight's gradient; each lane has channels of its own. With n = r rstd and
/// d_n = d_y weight (gate): d_r = rstd (d_n - n mean(n d_n)).
template <class O, class T>
__device__ __forceinline__ void gated_backward_head(const GatedBackward<O, T>& a, int64_t head, int lane, float* sums) {
  const GatedHeads<O, T>& in = a.in;
  const bool normed = in.weight != nullptr;
  const float* const weight = in.weight + in.weights_from(head);
  float rstd = 1;
  if (normed) {
    rstd = in.rstd(head, lane);
  }
  const auto d_weighted = [&](int64_t at) { return to_float(a.d_y[at]) * (in.gates_after() ? in.gate_of(at).value : 1.0f); };
  float along = 0;
  if (normed) {
    for (int64_t c = lane; c < in.width; c += 32) {
      const int64_t at = head * in.width + c;
      const float n = in.r(at) * rstd, d = d_weighted(at);
      sums[c] += d * n;
      along += d * weight[c] * n;
    }
    along = warp_sum(along) / static_cast<float>(in.width);
  }
  for (int64_t c = lane; c < in.width; c += 32) {
    const int64_t at = head * in.width + c;
    const float n = in.r(at) * rstd, w = normed ? weight[c] : 1.0f, d_n = d_weighted(at) * w;
    float d_o = normed ? rstd * (d_n - n * along) : d_n, d_gate = to_float(a.d_y[at]) * n * w;
    if (in.gates_before()) {
      d_gate = d_o * to_float(in.o[at]);
      d_o *= in.gate_of(at).value;
    }
    if (a.d_z != nullptr) {
      write(a.d_z[at], d_gate * in.gate_of(at).slope, a.accumulate_z);
    }
    if (a.d_o != nullptr) {
      write(a.d_o[at], d_o, a.accumulate_o);
    }
  }
}

// Grid: blocks of tokens (gated_norm_blocks). Shared: sums of the weight's gradient, [8 warps][width], or [heads][width] for a weight of
// all channels. A warp keeps to heads w, w + 8, ..., so that no two add to the same sum.
template <class O, class T>
__global__ void __launch_bounds__(32 * kWarps) gated_backward_kernel(GatedBackward<O, T> a) {
  HEBB_DYN_SHARED(raw);
  float* const sums = reinterpret_cast<float*>(raw);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t width = a.in.width, weights = a.in.by_channel ? a.in.heads * width : width;
  const int64_t first = blockIdx.x * kBlock, last = first + kBlock < a.tokens ? first + kBlock : a.tokens;
  if (a.in.weight != nullptr) {
    for (int64_t c = threadIdx.x; c < (a.in.by_channel ? weights : kWarps * width); c += 32 * kWarps) {
      sums[c] = 0;
    }
  }
  __syncthreads();
  if (a.in.by_channel) {
    for (int64_t h = warp; h < a.in.heads; h += kWarps) {
      for (int64_t token = first; token < last; ++token) {
        gated_backward_head(a, token * a.in.heads + h, lane, sums + h * width);
      }
    }
  } else {
    for (int64_t head = first * a.in.heads + warp; head < last * a.in.heads; head += kWarps) {
      gated_backward_head(a, head, lane, sums + warp * width);
    }
  }
  if (a.in.weight == nullptr) {
    return;
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < weights; c += 32 * kWarps) {
    float total = sums[c];
    for (int w = 1; w < kWarps && !a.in.by_channel; ++w) {
      total += sums[w * width + c];
    }
    a.partial[blockIdx.x * weights + c] = total;
  }
}

template <class O, class T, class Args>
GatedHeads<O, T> gated_heads(const Args& a) {
  const int64_t heads = a.o.numel() / a.o.size(0) / a.head_dim;
  return {.o = a.o.template as<O>(), .z = a.z.template as<T>(), .weight = a.weight.template as<float>(), .width = a.head_dim,
          .heads = heads, .eps = static_cast<float>(a.eps), .gate = a.gate, .gate_first = a.gate_first,
          .by_channel = a.weight.defined() && heads > 1 && a.weight.numel() == heads * a.head_dim};
}

template <class O, class T>
void backward(Stream& stream, const GatedNormBackward& a) {
  const int64_t tokens = a.o.size(0), blocks = gated_norm_blocks(tokens);
  const GatedBackward<O, T> g{.d_o = a.d_o.as<O>(), .d_z = a.d_z.as<T>(), .partial = a.partial.as<float>(), .d_y = a.d_y.as<T>(),
                           .in = gated_heads<O, T>(a), .tokens = tokens, .accumulate_o = a.accumulate_o, .accumulate_z = a.accumulate_z};
  const int64_t rows = !a.weight.defined() ? 0 : g.in.by_channel ? g.in.heads : kWarps;
  HEBB_LAUNCH((gated_backward_kernel<O, T>), blocks_for(blocks, 1), 32 * kWarps, rows * a.head_dim * static_cast<int64_t>(sizeof(float)),
              stream, g);
  add_column_sums(stream, a.d_weight, a.partial, blocks);
}

/// f(zero of o's type, zero of y's type): both the same, or fp32 and bf16.
template <class F>
void dispatch_gated(DType o, DType y, F&& f) {
  dispatch_float(o, [&](auto zero) {
    if constexpr (std::is_same_v<decltype(zero), float>) {
      if (y == DType::bf16) {
        f(zero, bf16{});
        return;
      }
    }
    f(zero, zero);
  });
}

}  // namespace

void run(Stream& stream, const L2NormForward& a) {
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("l2_norm_forward", stream, a.x.numel() / a.head_dim,
              L2Forward<T>{a.n.as<T>(), a.scale.as<float>(), a.x.as<T>(), a.head_dim});
  });
}

void run(Stream& stream, const L2NormBackward& a) {
  dispatch_float(a.n.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("l2_norm_backward", stream, a.n.numel() / a.head_dim,
              L2Backward<T>{a.d_x.as<T>(), a.d_n.as<T>(), a.n.as<T>(), a.scale.as<float>(), a.head_dim, a.accumulate});
  });
}

void run(Stream& stream, const GatedNormForward& a) {
  dispatch_gated(a.o.dtype, a.y.dtype, [&](auto o, auto y) {
    using O = decltype(o);
    using T = decltype(y);
    each_warp("gated_norm_forward", stream, a.o.numel() / a.head_dim, GatedForward<O, T>{a.y.as<T>(), gated_heads<O, T>(a)});
  });
}

void run(Stream& stream, const GatedNormBackward& a) {
  if (a.o.numel() > 0) {
    dispatch_gated(a.o.dtype, a.d_y.dtype, [&](auto o, auto y) { backward<decltype(o), decltype(y)>(stream, a); });
  }
}

}  // namespace hebb::HEBB_DEVICE
