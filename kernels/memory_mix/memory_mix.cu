#include "kernels/memory_mix/memory_mix.h"

#include "kernels/common/cuda/prelude.cuh"

// One warp a row, in packs; what is read twice comes from L1 the second time. Bound by HBM: the rows in and out once.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kEps = 1e-6f;

/// Sum of f(x) over a row's elements by one warp.
template <class T, class F>
__device__ __forceinline__ float warp_sum_of(const T* x, int64_t size, bool vector, int lane, F&& f) {
  float sum = 0;
  each_pack<kPack<T>>(size, 32, lane, [&](int64_t i) {
    float v[kPack<T>];
    load_pack(v, x, i, size, vector);
    HEBB_UNROLL
    for (int j = 0; j < kPack<T>; ++j) { sum += i + j < size ? f(v[j]) : 0.0f; }
  });
  return warp_sum(sum);
}

/// Sum of f(x, y).
template <class T, class F>
__device__ __forceinline__ float warp_sum_of(const T* x, const T* y, int64_t size, bool vector, int lane, F&& f) {
  float sum = 0;
  each_pack<kPack<T>>(size, 32, lane, [&](int64_t i) {
    float a[kPack<T>], b[kPack<T>];
    load_pack(a, x, i, size, vector);
    load_pack(b, y, i, size, vector);
    HEBB_UNROLL
    for (int j = 0; j < kPack<T>; ++j) {
      sum += f(a[j], b[j]);  // 0 past the end
    }
  });
  return warp_sum(sum);
}

template <class T> struct Score {
  T* y;
  float* rstd;
  const T* x;
  int64_t size;
  bool vector;

  __device__ void operator()(int64_t row, int lane) const {
    const T* const in = x + row * size;
    const float mean = warp_sum_of(in, size, vector, lane, [](float v) { return v; }) / static_cast<float>(size);
    const float squares = warp_sum_of(in, size, vector, lane, [mean](float v) { return (v - mean) * (v - mean); });
    const float factor = 1.0f / (sqrtf(squares / static_cast<float>(size - 1)) + kEps);
    each_pack<kPack<T>>(size, 32, lane, [&](int64_t i) {
      float v[kPack<T>];
      load_pack(v, in, i, size, vector);
      HEBB_UNROLL
      for (int j = 0; j < kPack<T>; ++j) { v[j] = (v[j] - mean) * factor; }
      store_pack(y + row * size, i, size, vector, v);
    });
    if (lane == 0) { rstd[row] = factor; }
  }
};

template <class T> struct ScoreGradient {
  T* d_x;
  const T *d_y, *y;
  const float* rstd;
  int64_t size;
  bool accumulate, vector;

  __device__ void operator()(int64_t row, int lane) const {
    const T *const d_out = d_y + row * size, *const out = y + row * size;
    const float factor = rstd[row], deviation = 1.0f / factor - kEps;
    const float mean = warp_sum_of(d_out, size, vector, lane, [](float d) { return d; }) / static_cast<float>(size);
    const float product = warp_sum_of(out, d_out, size, vector, lane, [](float v, float d) { return v * d; });
    // d std / d x_i = (x_i - mean) / ((size - 1) std), and x_i - mean = y_i / rstd.
    const float along = deviation > 0.0f ? product / (static_cast<float>(size - 1) * deviation) : 0.0f;
    each_pack<kPack<T>>(size, 32, lane, [&](int64_t i) {
      float v[kPack<T>], d[kPack<T>];
      load_pack(v, out, i, size, vector);
      load_pack(d, d_out, i, size, vector);
      HEBB_UNROLL
      for (int j = 0; j < kPack<T>; ++j) { d[j] = (d[j] - mean) * factor - along * v[j]; }
      write_pack(d_x + row * size, i, size, vector, d, accumulate);
    });
  }
};

template <class T> struct Mean {
  T* g;
  const T* x;
  int64_t width;
  bool vector;

  __device__ void operator()(int64_t row, int lane) const {
    const float sum = warp_sum_of(x + row * width, width, vector, lane, [](float v) { return v; });
    if (lane == 0) { g[row] = from_float<T>(sigmoid(sum / static_cast<float>(width))); }
  }
};

template <class T, int N> struct MeanGradient {
  T* d_x;
  const T *d_g, *g;
  int64_t width;
  bool accumulate;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const float gate = to_float(g[row]), d = to_float(d_g[row]) * gate * (1.0f - gate) / static_cast<float>(width);
    float value[N];
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { value[j] = d; }
    write_pack(d_x + row * width, pack * N, width, N > 1, value, accumulate);
  }
};

template <class T, int N> struct Mix {
  T* o;
  const T *g, *a, *b;
  int64_t size;

  __device__ void operator()(int64_t row, int64_t pack) const {
    const int64_t begin = row * size, i = pack * N;
    const float gate = to_float(g[row]);
    float x[N], y[N];
    load_pack(x, a + begin, i, size, N > 1);
    load_pack(y, b + begin, i, size, N > 1);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { x[j] = gate * x[j] + (1.0f - gate) * y[j]; }
    store_pack(o + begin, i, size, N > 1, x);
  }
};

template <class T> struct MixGradient {
  T *d_g, *d_a, *d_b;
  const T *d_o, *g, *a, *b;
  int64_t size;
  bool accumulate_g, accumulate_a, accumulate_b, vector;

  __device__ void operator()(int64_t row, int lane) const {
    constexpr int N = kPack<T>;
    const int64_t begin = row * size;
    const float gate = to_float(g[row]);
    float sum = 0;
    each_pack<kPack<T>>(size, 32, lane, [&](int64_t i) {
      float d[N], x[N], y[N];
      load_pack(d, d_o + begin, i, size, vector);
      if (d_g != nullptr) {
        load_pack(x, a + begin, i, size, vector);
        load_pack(y, b + begin, i, size, vector);
        HEBB_UNROLL
        for (int j = 0; j < N; ++j) { sum += d[j] * (x[j] - y[j]); }
      }
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        x[j] = gate * d[j];
        y[j] = (1.0f - gate) * d[j];
      }
      if (d_a != nullptr) { write_pack(d_a + begin, i, size, vector, x, accumulate_a); }
      if (d_b != nullptr) { write_pack(d_b + begin, i, size, vector, y, accumulate_b); }
    });
    if (d_g != nullptr) {
      sum = warp_sum(sum);
      if (lane == 0) { write(d_g[row], sum, accumulate_g); }
    }
  }
};

}  // namespace

void run(Stream& stream, const ZScore& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_warp("z_score", stream, a.x.size(0),
              Score<T>{a.y.as<T>(), a.rstd.as<float>(), a.x.as<T>(), a.x.size(1),
                       can_vectorise<kPack<T>>(a.x.size(1), a.y.data, a.x.data)});
  });
}

void run(Stream& stream, const ZScoreBackward& a) {
  dispatch_float(a.y.dtype, [&]<class T>(T) {
    each_warp("z_score_backward", stream, a.y.size(0),
              ScoreGradient<T>{a.d_x.as<T>(), a.d_y.as<T>(), a.y.as<T>(), a.rstd.as<float>(), a.y.size(1), a.accumulate,
                               can_vectorise<kPack<T>>(a.y.size(1), a.d_x.data, a.d_y.data, a.y.data)});
  });
}

void run(Stream& stream, const MeanGate& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_warp("mean_gate", stream, a.x.size(0),
              Mean<T>{a.g.as<T>(), a.x.as<T>(), a.x.size(1), can_vectorise<kPack<T>>(a.x.size(1), a.x.data)});
  });
}

void run(Stream& stream, const MeanGateBackward& a) {
  dispatch_float(a.g.dtype, [&]<class T>(T) {
    const int64_t width = a.d_x.size(1);
    dispatch_pack<T>(width, {a.d_x.data}, [&](auto pack) {
      each_element("mean_gate_backward", stream, a.d_x.size(0), width / pack(),
                   MeanGradient<T, pack()>{a.d_x.as<T>(), a.d_g.as<T>(), a.g.as<T>(), width, a.accumulate});
    });
  });
}

void run(Stream& stream, const GateMix& m) {
  dispatch_float(m.o.dtype, [&]<class T>(T) {
    const int64_t size = m.o.size(1);
    dispatch_pack<T>(size, {m.o.data, m.a.data, m.b.data}, [&](auto pack) {
      each_element("gate_mix", stream, m.o.size(0), size / pack(),
                   Mix<T, pack()>{m.o.as<T>(), m.g.as<T>(), m.a.as<T>(), m.b.as<T>(), size});
    });
  });
}

void run(Stream& stream, const GateMixBackward& m) {
  dispatch_float(m.d_o.dtype, [&]<class T>(T) {
    each_warp(
        "gate_mix_backward", stream, m.a.size(0),
        MixGradient<T>{m.d_g.as<T>(), m.d_a.as<T>(), m.d_b.as<T>(), m.d_o.as<T>(), m.g.as<T>(), m.a.as<T>(),
                       m.b.as<T>(), m.a.size(1), m.accumulate_g, m.accumulate_a, m.accumulate_b,
                       can_vectorise<kPack<T>>(m.a.size(1), m.d_a.data, m.d_b.data, m.d_o.data, m.a.data, m.b.data)});
  });
}

}  // namespace hebb::HEBB_DEVICE
