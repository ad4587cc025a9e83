#include "kernels/sigmoid_gate.h"

#include "kernels/cuda/common/prelude.h"

// Bound by HBM: 3 passes forward, 5 backward.
namespace hebb::HEBB_DEVICE {
namespace {

/// Row: token and head.
template <class T>
struct Forward {
  T* y;
  const T *x, *gate;
  int64_t channels;
  bool by_head;

  __device__ void operator()(int64_t row, int64_t c) const {
    const int64_t at = row * channels + c;
    y[at] = from_float<T>(to_float(x[at]) * sigmoid(to_float(gate[by_head ? row : at])));
  }
};

/// One warp a row, for the sum over its channels.
template <class T>
struct Backward {
  T *d_x, *d_gate;
  const T *d_y, *x, *gate;
  int64_t channels;
  bool by_head, accumulate_x, accumulate_gate;

  __device__ void operator()(int64_t row, int lane) const {
    float total = 0;
    for (int64_t at = row * channels + lane; at < (row + 1) * channels; at += 32) {
      const float s = sigmoid(to_float(gate[by_head ? row : at])), g = to_float(d_y[at]);
      const float d = g * to_float(x[at]) * s * (1.0f - s);
      if (d_x != nullptr) {
        write(d_x[at], g * s, accumulate_x);
      }
      if (!by_head && d_gate != nullptr) {
        write(d_gate[at], d, accumulate_gate);
      }
      total += d;
    }
    if (by_head && d_gate != nullptr) {
      total = warp_sum(total);
      if (lane == 0) {
        write(d_gate[row], total, accumulate_gate);
      }
    }
  }
};

}  // namespace

void run(Stream& stream, const SigmoidGateForward& a) {
  const int64_t channels = a.x.size(2);
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("sigmoid_gate_forward", stream, a.x.numel() / channels, channels,
                 Forward<T>{a.y.as<T>(), a.x.as<T>(), a.gate.as<T>(), channels, a.gate.numel() != a.x.numel()});
  });
}

void run(Stream& stream, const SigmoidGateBackward& a) {
  const int64_t channels = a.x.size(2);
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("sigmoid_gate_backward", stream, a.x.numel() / channels,
              Backward<T>{a.d_x.as<T>(), a.d_gate.as<T>(), a.d_y.as<T>(), a.x.as<T>(), a.gate.as<T>(), channels,
                          a.gate.numel() != a.x.numel(), a.accumulate_x, a.accumulate_gate});
  });
}

}  // namespace hebb::HEBB_DEVICE
