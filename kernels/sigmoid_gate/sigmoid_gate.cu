#include "kernels/sigmoid_gate/sigmoid_gate.h"

#include "kernels/common/cuda/prelude.cuh"

// Bound by HBM: 3 passes forward, 5 backward.
namespace hebb::HEBB_DEVICE {
namespace {

/// Row: token and head.
template <class T, int N> struct SigmoidGateForwardBody {
  T* y;
  const T *x, *gate;
  int64_t channels;
  bool by_head;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t begin = row * channels, c = pack * N;
    float v[N], g[N];
    load_pack(v, x + begin, c, channels, N > 1);
    if (by_head) {
      g[0] = sigmoid(to_float(gate[row]));
    } else {
      load_pack(g, gate + begin, c, channels, N > 1);
    }
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { v[j] *= by_head ? g[0] : sigmoid(g[j]); }
    store_pack(y + begin, c, channels, N > 1, v);
  }
};

/// A group of lanes a row, for the sum over its channels.
template <class T> struct SigmoidGateBackwardBody {
  T *d_x, *d_gate;
  const T *d_y, *x, *gate;
  int64_t channels;
  int lanes;
  bool by_head, accumulate_x, accumulate_gate, vector;

  __device__ void operator()(int64_t row, int lane) const {
    constexpr int N = kPack<T>;
    const int64_t begin = row * channels;
    const float of_head = by_head ? sigmoid(to_float(gate[row])) : 0.0f;
    float total = 0;
    for (int64_t c = lane * N; c < channels; c += lanes * N) {
      float g[N], v[N], s[N] = {};
      load_pack(g, d_y + begin, c, channels, vector);
      load_pack(v, x + begin, c, channels, vector);
      if (!by_head) { load_pack(s, gate + begin, c, channels, vector); }
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        s[j] = by_head ? of_head : sigmoid(s[j]);
        v[j] *= g[j] * s[j] * (1.0f - s[j]);  // 0 past the end
        g[j] *= s[j];
        total += v[j];
      }
      if (d_x != nullptr) { write_pack(d_x + begin, c, channels, vector, g, accumulate_x); }
      if (!by_head && d_gate != nullptr) { write_pack(d_gate + begin, c, channels, vector, v, accumulate_gate); }
    }
    if (by_head && d_gate != nullptr) {
      total = group_sum(total, lanes);
      if (lane == 0) { write(d_gate[row], total, accumulate_gate); }
    }
  }
};

}  // namespace

void run(Stream& stream, const SigmoidGateForward& a) {
  const int64_t channels = a.x.size(2);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    const bool by_head = a.gate.numel() != a.x.numel();
    dispatch_pack<T>(channels, {a.y.data, a.x.data, by_head ? nullptr : a.gate.data}, [&](auto pack) {
      each_element("sigmoid_gate_forward", stream, a.x.numel() / channels, channels / pack(),
                   SigmoidGateForwardBody<T, pack()>{a.y.as<T>(), a.x.as<T>(), a.gate.as<T>(), channels, by_head});
    });
  });
}

void run(Stream& stream, const SigmoidGateBackward& a) {
  const int64_t channels = a.x.size(2);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    constexpr int N = kPack<T>;
    const bool by_head = a.gate.numel() != a.x.numel(),
               vector = can_vectorise<N>(channels, a.d_x.data, a.d_y.data, a.x.data);
    each_group("sigmoid_gate_backward", stream, a.x.numel() / channels, lanes_for<N>(channels),
               SigmoidGateBackwardBody<T>{
                   .d_x = a.d_x.as<T>(),
                   .d_gate = a.d_gate.as<T>(),
                   .d_y = a.d_y.as<T>(),
                   .x = a.x.as<T>(),
                   .gate = a.gate.as<T>(),
                   .channels = channels,
                   .lanes = lanes_for<N>(channels),
                   .by_head = by_head,
                   .accumulate_x = a.accumulate_x,
                   .accumulate_gate = a.accumulate_gate,
                   .vector = vector && (by_head || can_vectorise<N>(channels, a.d_gate.data, a.gate.data))});
  });
}

}  // namespace hebb::HEBB_DEVICE
