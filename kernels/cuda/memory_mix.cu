#include "kernels/memory_mix.h"

#include "kernels/cuda/common/prelude.h"

// One warp a row; what is read twice comes from L1 the second time. Bound by HBM: the rows in and out once.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kEps = 1e-6f;

/// Sum of f(i) over i < count by one warp.
template <class F>
__device__ __forceinline__ float warp_sum_of(int64_t count, int lane, F&& f HEBB_WHERE_PARAMETER) {
  float sum = 0;
  for (int64_t i = lane; i < count; i += 32) {
    sum += f(i);
  }
  return warp_sum(sum HEBB_WHERE_ARGUMENT);
}

template <class T>
struct Score {
  T* y;
  float* rstd;
  const T* x;
  int64_t size;

  __device__ void operator()(int64_t row, int lane) const {
    const T* const in = x + row * size;
    const float mean = warp_sum_of(size, lane, [&](int64_t i) { return to_float(in[i]); }) / static_cast<float>(size);
    const float squares = warp_sum_of(size, lane, [&](int64_t i) { return (to_float(in[i]) - mean) * (to_float(in[i]) - mean); });
    const float factor = 1.0f / (sqrtf(squares / static_cast<float>(size - 1)) + kEps);
    for (int64_t i = lane; i < size; i += 32) {
      y[row * size + i] = from_float<T>((to_float(in[i]) - mean) * factor);
    }
    if (lane == 0) {
      rstd[row] = factor;
    }
  }
};

template <class T>
struct ScoreGradient {
  T* d_x;
  const T *d_y, *y;
  const float* rstd;
  int64_t size;
  bool accumulate;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t at = row * size;
    const float factor = rstd[row], deviation = 1.0f / factor - kEps;
    const float mean = warp_sum_of(size, lane, [&](int64_t i) { return to_float(d_y[at + i]); }) / static_cast<float>(size);
    const float product = warp_sum_of(size, lane, [&](int64_t i) { return to_float(y[at + i]) * to_float(d_y[at + i]); });
    // d std / d x_i = (x_i - mean) / ((size - 1) std), and x_i - mean = y_i / rstd.
    const float along = deviation > 0.0f ? product / (static_cast<float>(size - 1) * deviation) : 0.0f;
    for (int64_t i = lane; i < size; i += 32) {
      write(d_x[at + i], (to_float(d_y[at + i]) - mean) * factor - along * to_float(y[at + i]), accumulate);
    }
  }
};

template <class T>
struct Mean {
  T* g;
  const T* x;
  int64_t width;

  __device__ void operator()(int64_t row, int lane) const {
    const float sum = warp_sum_of(width, lane, [&](int64_t i) { return to_float(x[row * width + i]); });
    if (lane == 0) {
      g[row] = from_float<T>(sigmoid(sum / static_cast<float>(width)));
    }
  }
};

template <class T>
struct MeanGradient {
  T* d_x;
  const T *d_g, *g;
  int64_t width;
  bool accumulate;

  __device__ void operator()(int64_t row, int64_t i) const {
    const float gate = to_float(g[row]);
    write(d_x[row * width + i], to_float(d_g[row]) * gate * (1.0f - gate) / static_cast<float>(width), accumulate);
  }
};

template <class T>
struct Mix {
  T* o;
  const T *g, *a, *b;
  int64_t size;

  __device__ void operator()(int64_t row, int64_t i) const {
    const int64_t at = row * size + i;
    const float gate = to_float(g[row]);
    o[at] = from_float<T>(gate * to_float(a[at]) + (1.0f - gate) * to_float(b[at]));
  }
};

template <class T>
struct MixGradient {
  T *d_g, *d_a, *d_b;
  const T *d_o, *g, *a, *b;
  int64_t size;
  bool accumulate_g, accumulate_a, accumulate_b;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t at = row * size;
    const float gate = to_float(g[row]);
    if (d_g != nullptr) {
      const float sum =
          warp_sum_of(size, lane, [&](int64_t i) { return to_float(d_o[at + i]) * (to_float(a[at + i]) - to_float(b[at + i])); });
      if (lane == 0) {
        write(d_g[row], sum, accumulate_g);
      }
    }
    for (int64_t i = at + lane; i < at + size; i += 32) {
      if (d_a != nullptr) {
        write(d_a[i], gate * to_float(d_o[i]), accumulate_a);
      }
      if (d_b != nullptr) {
        write(d_b[i], (1.0f - gate) * to_float(d_o[i]), accumulate_b);
      }
    }
  }
};

}  // namespace

void run(Stream& stream, const ZScore& a) {
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("z_score", stream, a.x.size(0), Score<T>{a.y.as<T>(), a.rstd.as<float>(), a.x.as<T>(), a.x.size(1)});
  });
}

void run(Stream& stream, const ZScoreBackward& a) {
  dispatch_float(a.y.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("z_score_backward", stream, a.y.size(0),
              ScoreGradient<T>{a.d_x.as<T>(), a.d_y.as<T>(), a.y.as<T>(), a.rstd.as<float>(), a.y.size(1), a.accumulate});
  });
}

void run(Stream& stream, const MeanGate& a) {
  dispatch_float(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("mean_gate", stream, a.x.size(0), Mean<T>{a.g.as<T>(), a.x.as<T>(), a.x.size(1)});
  });
}

void run(Stream& stream, const MeanGateBackward& a) {
  dispatch_float(a.g.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("mean_gate_backward", stream, a.d_x.size(0), a.d_x.size(1),
                 MeanGradient<T>{a.d_x.as<T>(), a.d_g.as<T>(), a.g.as<T>(), a.d_x.size(1), a.accumulate});
  });
}

void run(Stream& stream, const GateMix& m) {
  dispatch_float(m.o.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("gate_mix", stream, m.o.size(0), m.o.size(1),
                 Mix<T>{m.o.as<T>(), m.g.as<T>(), m.a.as<T>(), m.b.as<T>(), m.o.size(1)});
  });
}

void run(Stream& stream, const GateMixBackward& m) {
  dispatch_float(m.d_o.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_warp("gate_mix_backward", stream, m.a.size(0),
              MixGradient<T>{m.d_g.as<T>(), m.d_a.as<T>(), m.d_b.as<T>(), m.d_o.as<T>(), m.g.as<T>(), m.a.as<T>(), m.b.as<T>(),
                             m.a.size(1), m.accumulate_g, m.accumulate_a, m.accumulate_b});
  });
}

}  // namespace hebb::HEBB_DEVICE
