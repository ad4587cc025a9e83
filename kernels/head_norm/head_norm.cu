#include "kernels/head_norm/head_norm.h"

#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/common/cuda/dispatch_wide.cuh"
#include "kernels/head_norm/scratch.h"

// A group of lanes a head, a pack of channels a lane where the head is no longer than a warp's packs; what is read
// twice comes from L1 the second time. Bound by HBM: 2 and 3 passes, gated 3 and 5.
namespace hebb::HEBB_DEVICE {
namespace {

template <class T, bool kVector> struct L2Forward {
  T* n;
  float* scale;
  const T* x;
  int64_t width;
  int lanes;

  __device__ void operator()(int64_t head, int lane) const {
    constexpr int N = kPack<T>;
    const T* const in = x + head * width;
    float squares = 0, v[N];
    each_pack<N>(width, lanes, lane, [&](int64_t c) {
      load_pack(v, in, c, width, kVector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { squares += v[j] * v[j]; }
    });
    const float s = l2_scale(group_sum(squares, lanes));
    each_pack<N>(width, lanes, lane, [&](int64_t c) {
      load_pack(v, in, c, width, kVector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { v[j] *= s; }
      store_pack(n + head * width, c, width, kVector, v);
    });
    if (lane == 0) { scale[head] = s; }
  }
};

template <class T, bool kVector> struct L2Backward {
  T* d_x;
  const T *d_n, *n;
  const float* scale;
  int64_t width;
  int lanes;
  bool accumulate;

  __device__ void operator()(int64_t head, int lane) const {
    constexpr int N = kPack<T>;
    const int64_t begin = head * width;
    const float s = scale[head];
    float along = 0, v[N], d[N];
    each_pack<N>(width, lanes, lane, [&](int64_t c) {
      load_pack(v, n + begin, c, width, kVector);
      load_pack(d, d_n + begin, c, width, kVector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { along += v[j] * d[j]; }
    });
    along = group_sum(along, lanes);
    each_pack<N>(width, lanes, lane, [&](int64_t c) {
      load_pack(v, n + begin, c, width, kVector);
      load_pack(d, d_n + begin, c, width, kVector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { d[j] = s * (d[j] - v[j] * along); }
      write_pack(d_x + begin, c, width, kVector, d, accumulate);
    });
  }
};

struct Gate {
  float value, slope;
};

__device__ __forceinline__ Gate gate_at(HeadGate kind, float z) {
  const float s = sigmoid(z);
  return kind == HeadGate::silu ? Gate{z * s, s * (1.0f + z * (1.0f - s))} : Gate{s, s * (1.0f - s)};
}

/// What forward and backward share: r, the tensor that is normed, is o or, gated first, o * gate. O: type of o, T: of
/// all else.
template <class O, class T, bool kVector> struct GatedHeads {
  static constexpr int N = kPack<T>;
  const O* o;
  const T* z;
  const float* weight;
  int64_t width, heads;  // heads: of a token
  float eps;
  HeadGate gate;
  int lanes;
  bool gate_first, by_channel;  // by_channel: a weight for each channel of all heads

  __device__ bool gates_before() const { return gate_first && z != nullptr; }
  __device__ bool gates_after() const { return !gate_first && z != nullptr; }

  /// The weights of a pack; 1 where there are none.
  __device__ __forceinline__ void load_weights(int64_t head, int64_t c, float (&to)[N]) const {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { to[j] = 1; }
    if (weight != nullptr) { load_pack(to, weight + (by_channel ? head % heads * width : 0), c, width, kVector); }
  }

  /// A pack of a head. gates: 1 and 0 where there are none; r: what is normed.
  struct Part {
    float o[N], r[N];
    Gate gates[N];
  };
  __device__ __forceinline__ void load(int64_t head, int64_t c, Part& p) const {
    load_pack(p.o, o + head * width, c, width, kVector);
    float in[N] = {};
    if (z != nullptr) { load_pack(in, z + head * width, c, width, kVector); }
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      p.gates[j] = z != nullptr ? gate_at(gate, in[j]) : Gate{1, 0};
      p.r[j] = gates_before() ? p.o[j] * p.gates[j].value : p.o[j];
    }
  }
  __device__ float rstd(int64_t head, int lane) const {
    float squares = 0;
    each_pack<N>(width, lanes, lane, [&](int64_t c) {
      float r[N];
      if (gates_before()) {
        Part p;
        load(head, c, p);
        HEBB_UNROLL
        for (int j = 0; j < N; ++j) { r[j] = p.r[j]; }
      } else {
        load_pack(r, o + head * width, c, width, kVector);
      }
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { squares += r[j] * r[j]; }
    });
    return 1.0f / sqrtf(group_sum(squares, lanes) / static_cast<float>(width) + eps);
  }
};

template <class O, class T, bool kVector> struct GatedForward {
  T* y;
  GatedHeads<O, T, kVector> in;

  __device__ void operator()(int64_t head, int lane) const {
    constexpr int N = kPack<T>;
    float rstd = 1;
    if (in.weight != nullptr) { rstd = in.rstd(head, lane); }
    each_pack<N>(in.width, in.lanes, lane, [&](int64_t c) {
      typename GatedHeads<O, T, kVector>::Part p;
      in.load(head, c, p);
      float weight[N], v[N];
      in.load_weights(head, c, weight);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        v[j] = p.r[j] * rstd * weight[j];
        v[j] = in.gates_after() ? v[j] * p.gates[j].value : v[j];
      }
      store_pack(y + head * in.width, c, in.width, kVector, v);
    });
  }
};

template <class O, class T, bool kVector> struct GatedBackward {
  O* d_o;
  T* d_z;
  float* partial;
  const T* d_y;
  GatedHeads<O, T, kVector> in;
  int64_t tokens;
  bool accumulate_o, accumulate_z;
};

constexpr int kThreads = 256;

/// One head: d_z, d_o and, added to sums [width], the weight's gradient; each lane has channels of its own. With n = r
/// rstd and d_n = d_y weight (gate): d_r = rstd (d_n - n mean(n d_n)).
template <class O, class T, bool kVector>
__device__ __forceinline__ void gated_backward_head(const GatedBackward<O, T, kVector>& a, int64_t head, int lane,
                                                    float* sums) {
  using Heads = GatedHeads<O, T, kVector>;
  constexpr int N = Heads::N;
  const Heads& in = a.in;
  const bool normed = in.weight != nullptr;
  const int64_t begin = head * in.width;
  float rstd = 1;
  if (normed) { rstd = in.rstd(head, lane); }
  float weight[N], d_y[N];
  const auto load = [&](int64_t c, typename Heads::Part& p) {
    in.load(head, c, p);
    load_pack(d_y, a.d_y + begin, c, in.width, kVector);
    in.load_weights(head, c, weight);
  };
  float along = 0;
  if (normed) {
    each_pack<N>(in.width, in.lanes, lane, [&](int64_t c) {
      typename Heads::Part p;
      load(c, p);
      float shares[N];
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        const float n = p.r[j] * rstd, d = d_y[j] * (in.gates_after() ? p.gates[j].value : 1.0f);
        along += d * weight[j] * n;
        shares[j] = d * n;
      }
      write_pack(sums, c, in.width, kVector, shares, true);  // packs: single words N apart would lie in few banks
    });
    along = group_sum(along, in.lanes) / static_cast<float>(in.width);
  }
  each_pack<N>(in.width, in.lanes, lane, [&](int64_t c) {
    typename Heads::Part p;
    load(c, p);
    float d_o[N], d_z[N];
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      const float n = p.r[j] * rstd, d = d_y[j] * (in.gates_after() ? p.gates[j].value : 1.0f) * weight[j];
      d_o[j] = normed ? rstd * (d - n * along) : d;
      const float d_gate = in.gates_before() ? d_o[j] * p.o[j] : d_y[j] * n * weight[j];
      d_o[j] *= in.gates_before() ? p.gates[j].value : 1.0f;
      d_z[j] = d_gate * p.gates[j].slope;
    }
    if (a.d_z != nullptr) { write_pack(a.d_z + begin, c, in.width, kVector, d_z, a.accumulate_z); }
    if (a.d_o != nullptr) { write_pack(a.d_o + begin, c, in.width, kVector, d_o, a.accumulate_o); }
  });
}

/// Where a block sums the weight's gradient: `count` slots of [width]. Each belongs to one group of lanes, so that no
/// two add to the same sum; with a weight for each channel a slot belongs to one head, too.
struct Slots {
  int64_t count, per_weight;  // per_weight: the slots of a weight lie this far apart

  Slots(bool by_channel, int64_t heads, int lanes) {
    const int64_t groups = kThreads / lanes;
    count = by_channel ? (heads > groups ? heads : groups / heads * heads) : groups;
    per_weight = by_channel ? heads : 1;
  }
};

// Grid: blocks of tokens (GatedNormBlocks). Shared: the slots' sums.
template <class O, class T, bool kVector>
__global__ void __launch_bounds__(kThreads, 2) gated_backward_kernel(GatedBackward<O, T, kVector> a, Slots slots) {
  HEBB_DYN_SHARED(raw);
  float* const sums = reinterpret_cast<float*>(raw);
  const auto lanes = static_cast<unsigned>(a.in.lanes);
  const int lane = static_cast<int>(threadIdx.x % lanes);
  const int64_t group = threadIdx.x / lanes, width = a.in.width, heads = a.in.heads,
                weights = a.in.by_channel ? heads * width : width;
  const int64_t first = GatedNormBlocks::begin(blockIdx.x), last = GatedNormBlocks::end(blockIdx.x, a.tokens);
  if (a.in.weight != nullptr) {
    for (int64_t c = threadIdx.x; c < slots.count * width; c += kThreads) { sums[c] = 0; }
  }
  __syncthreads();
  for (int64_t slot = group; slot < slots.count; slot += kThreads / lanes) {
    const int64_t step = a.in.by_channel ? slots.count / heads : slots.count;  // in tokens, or in heads of all tokens
    const int64_t begin = a.in.by_channel ? first + slot / heads : first * heads + slot,
                  end = a.in.by_channel ? last : last * heads;
    for (int64_t i = begin; i < end; i += step) {
      gated_backward_head(a, a.in.by_channel ? i * heads + slot % heads : i, lane, sums + slot * width);
    }
  }
  if (a.in.weight == nullptr) { return; }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < weights; c += kThreads) {
    float total = 0;
    for (int64_t at = c; at < slots.count * width; at += slots.per_weight * width) { total += sums[at]; }
    a.partial[blockIdx.x * weights + c] = total;
  }
}

/// Whether all heads are whole packs, at these and the shared addresses.
template <class T, class Args, class... Pointers> bool has_whole_packs(const Args& a, Pointers... pointers) {
  return can_vectorise<kPack<T>>(a.head_dim, a.o.data, a.z.data, a.weight.data, pointers...);
}

template <class O, class T, bool kVector, class Args> GatedHeads<O, T, kVector> gated_heads(const Args& a) {
  constexpr int N = kPack<T>;
  const int64_t heads = a.o.numel() / a.o.size(0) / a.head_dim;
  return {.o = a.o.template as<O>(),
          .z = a.z.template as<T>(),
          .weight = a.weight.template as<float>(),
          .width = a.head_dim,
          .heads = heads,
          .eps = static_cast<float>(a.eps),
          .gate = a.gate,
          .lanes = lanes_for<N>(a.head_dim),
          .gate_first = a.gate_first,
          .by_channel = a.weight.defined() && heads > 1 && a.weight.numel() == heads * a.head_dim};
}

template <class O, class T, bool kVector>
void backward(Stream& stream, const GatedNormBackward& a, const GatedNormBackwardScratch& scratch) {
  const int64_t tokens = a.o.size(0), blocks = GatedNormBlocks::count(tokens);
  const GatedBackward<O, T, kVector> g{.d_o = a.d_o.as<O>(),
                                       .d_z = a.d_z.as<T>(),
                                       .partial = scratch.partial.as<float>(),
                                       .d_y = a.d_y.as<T>(),
                                       .in = gated_heads<O, T, kVector>(a),
                                       .tokens = tokens,
                                       .accumulate_o = a.accumulate_o,
                                       .accumulate_z = a.accumulate_z};
  const Slots slots(g.in.by_channel, g.in.heads, g.in.lanes);
  const int64_t shared = a.weight.defined() ? slots.count * a.head_dim * static_cast<int64_t>(sizeof(float)) : 0;
  HEBB_LAUNCH((gated_backward_kernel<O, T, kVector>), blocks_for(blocks, 1), kThreads, shared, stream, g, slots);
  add_column_sums(stream, a.d_weight, scratch.partial, blocks);
}

}  // namespace

void run(Stream& stream, const L2NormForward& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    const int lanes = lanes_for<kPack<T>>(a.head_dim);
    dispatch_flag(can_vectorise<kPack<T>>(a.head_dim, a.n.data, a.x.data), [&](auto whole) {
      each_group("l2_norm_forward", stream, a.x.numel() / a.head_dim, lanes,
                 L2Forward<T, whole()>{a.n.as<T>(), a.scale.as<float>(), a.x.as<T>(), a.head_dim, lanes});
    });
  });
}

void run(Stream& stream, const L2NormBackward& a) {
  dispatch_float(a.n.dtype, [&]<class T>(T) {
    const int lanes = lanes_for<kPack<T>>(a.head_dim);
    dispatch_flag(can_vectorise<kPack<T>>(a.head_dim, a.d_x.data, a.d_n.data, a.n.data), [&](auto whole) {
      each_group("l2_norm_backward", stream, a.n.numel() / a.head_dim, lanes,
                 L2Backward<T, whole()>{a.d_x.as<T>(), a.d_n.as<T>(), a.n.as<T>(), a.scale.as<float>(), a.head_dim,
                                        lanes, a.accumulate});
    });
  });
}

void run(Stream& stream, const GatedNormForward& a) {
  dispatch_wide(a.o.dtype, a.y.dtype, [&]<class O, class T>(O, T) {
    dispatch_flag(has_whole_packs<T>(a, a.y.data), [&](auto whole) {
      const GatedForward<O, T, whole()> f{a.y.as<T>(), gated_heads<O, T, whole()>(a)};
      each_group("gated_norm_forward", stream, a.o.numel() / a.head_dim, f.in.lanes, f);
    });
  });
}

void run(Stream& stream, const GatedNormBackward& a, const GatedNormBackwardScratch& scratch) {
  if (a.o.numel() > 0) {
    dispatch_wide(a.o.dtype, a.d_y.dtype, [&]<class O, class T>(O, T) {
      dispatch_flag(has_whole_packs<T>(a, a.d_o.data, a.d_z.data, a.d_y.data),
                    [&](auto whole) { backward<O, T, whole()>(stream, a, scratch); });
    });
  }
}

}  // namespace hebb::HEBB_DEVICE
