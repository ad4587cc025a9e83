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

template <class T>
struct GatedForward {
  T* y;
  const T *o, *z;
  const float* weight;
  int64_t width;
  float eps;
  HeadGate gate;

  __device__ void operator()(int64_t head, int lane) const {
    const T* const in = o + head * width;
    float rstd = 1;
    if (weight != nullptr) {
      rstd = 1.0f / sqrtf(sum_squares(in, width, lane) / static_cast<float>(width) + eps);
    }
    for (int64_t c = lane; c < width; c += 32) {
      float v = to_float(in[c]) * rstd * (weight != nullptr ? weight[c] : 1.0f);
      v *= z != nullptr ? gate_at(gate, to_float(z[head * width + c])).value : 1.0f;
      y[head * width + c] = from_float<T>(v);
    }
  }
};

template <class T>
struct GatedBackward {
  T *d_o, *d_z;
  float* partial;
  const T *d_y, *o, *z;
  const float* weight;
  int64_t width, heads, block_heads;  // heads: of all tokens
  float eps;
  HeadGate gate;
  bool accumulate_o, accumulate_z;
};

constexpr int kWarps = 8;

/// One head: d_z, d_o and, added to sums [width], the weight's gradient; each lane has channels of its own.
template <class T>
__device__ __forceinline__ void gated_backward_head(const GatedBackward<T>& a, int64_t head, int lane, float* sums) {
  const int64_t begin = head * a.width;
  const bool normed = a.weight != nullptr;
  float rstd = 1;
  if (normed) {
    rstd = 1.0f / sqrtf(sum_squares(a.o + begin, a.width, lane) / static_cast<float>(a.width) + a.eps);
  }
  // The gradient at the normed value times the weight, and the normed value.
  const auto d_normed = [&](int64_t c) {
    const float d = to_float(a.d_y[begin + c]);
    return a.z != nullptr ? d * gate_at(a.gate, to_float(a.z[begin + c])).value : d;
  };
  float along = 0;
  for (int64_t c = lane; c < a.width; c += 32) {
    const float n = to_float(a.o[begin + c]) * rstd, w = normed ? a.weight[c] : 1.0f, d = d_normed(c);
    if (normed) {
      sums[c] += d * n;
      along += d * w * n;
    }
  }
  along = normed ? warp_sum(along) / static_cast<float>(a.width) : 0.0f;
  for (int64_t c = lane; c < a.width; c += 32) {
    const float n = to_float(a.o[begin + c]) * rstd, w = normed ? a.weight[c] : 1.0f, d = d_normed(c) * w;
    if (a.d_z != nullptr) {
      write(a.d_z[begin + c], to_float(a.d_y[begin + c]) * n * w * gate_at(a.gate, to_float(a.z[begin + c])).slope, a.accumulate_z);
    }
    if (a.d_o != nullptr) {
      write(a.d_o[begin + c], normed ? rstd * (d - n * along) : d, a.accumulate_o);
    }
  }
}

// Grid: blocks of tokens (gated_norm_blocks). Shared: [8 warps][width] sums of the weight's gradient.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) gated_backward_kernel(GatedBackward<T> a) {
  HEBB_DYN_SHARED(raw);
  float* const sums = reinterpret_cast<float*>(raw);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (a.weight != nullptr) {
    for (int64_t c = lane; c < a.width; c += 32) {
      sums[warp * a.width + c] = 0;
    }
  }
  const int64_t first = blockIdx.x * a.block_heads;
  const int64_t last = first + a.block_heads < a.heads ? first + a.block_heads : a.heads;
  for (int64_t head = first + warp; head < last; head += kWarps) {
    gated_backward_head(a, head, lane, sums + warp * a.width);
  }
  if (a.weight == nullptr) {
    return;
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < a.width; c += 32 * kWarps) {
    float total = 0;
    HEBB_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      total += sums[w * a.width + c];
    }
    a.partial[blockIdx.x * a.width + c] = total;
  }
}

template <class T>
void backward(Stream& stream, const GatedNormBackward& a) {
  const int64_t tokens = a.o.size(0), heads = a.o.numel() / a.head_dim, blocks = gated_norm_blocks(tokens);
  constexpr int64_t kTokens = 64;  // of a block, as in gated_norm_blocks
  const GatedBackward<T> g{.d_o = a.d_o.as<T>(), .d_z = a.d_z.as<T>(), .partial = a.partial.as<float>(), .d_y = a.d_y.as<T>(),
                           .o = a.o.as<T>(), .z = a.z.as<T>(), .weight = a.weight.as<float>(), .width = a.head_dim, .heads = heads,
                           .block_heads = kTokens * heads / tokens, .eps = static_cast<float>(a.eps), .gate = a.gate,
                           .accumulate_o = a.accumulate_o, .accumulate_z = a.accumulate_z};
  const int64_t shared = a.weight.defined() ? kWarps * a.head_dim * static_cast<int64_t>(sizeof(float)) : 0;
  HEBB_LAUNCH(gated_backward_kernel<T>, blocks_for(blocks, 1), 32 * kWarps, shared, stream, g);
  add_column_sums(stream, a.d_weight, a.partial, blocks);
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
  if (a.gate_first || (a.weight.defined() && a.weight.numel() != a.head_dim)) {
    no_cuda_kernel("GatedNormForward, gate first or weights by channel");
  }
  dispatch_float(a.o.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("gated_norm_forward", stream, a.o.numel() / a.head_dim,
              GatedForward<T>{a.y.as<T>(), a.o.as<T>(), a.z.as<T>(), a.weight.as<float>(), a.head_dim, static_cast<float>(a.eps),
                              a.gate});
  });
}

void run(Stream& stream, const GatedNormBackward& a) {
  if (a.gate_first || (a.weight.defined() && a.weight.numel() != a.head_dim)) {
    no_cuda_kernel("GatedNormBackward, gate first or weights by channel");
  }
  if (a.o.numel() > 0) {
    dispatch_float(a.o.dtype, [&](auto zero) { backward<decltype(zero)>(stream, a); });
  }
}

}  // namespace hebb::HEBB_DEVICE
