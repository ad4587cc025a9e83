#include "kernels/memory_mix/memory_mix.h"

#include "core/parallel.h"
#include "kernels/common/formulas.h"

namespace hebb::cpu {

constexpr int64_t kGrain = 8;  // rows

void run(Stream&, const ZScore& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t size = a.x.size(1);
    parallel_each(a.x.size(0), kGrain, [&](int64_t r) {
      const S* x = a.x.as<S>() + r * size;
      S* y = a.y.as<S>() + r * size;
      const S mean = lane_sum<S>(size, [&](int64_t i) { return x[i]; }) / S(size);
      const S square = lane_sum<S>(size, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
      const S rstd = S(1) / (std::sqrt(square / S(size - 1)) + S(1e-6));
      for (int64_t i = 0; i < size; ++i) { y[i] = (x[i] - mean) * rstd; }
      a.rstd.as<S>()[r] = rstd;
    });
  });
}

void run(Stream&, const ZScoreBackward& a) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    const int64_t size = a.y.size(1);
    parallel_each(a.y.size(0), kGrain, [&](int64_t r) {
      const S *y = a.y.as<S>() + r * size, *d_y = a.d_y.as<S>() + r * size;
      S* d_x = a.d_x.as<S>() + r * size;
      const S rstd = a.rstd.as<S>()[r], std = S(1) / rstd - S(1e-6);
      const S mean = lane_sum<S>(size, [&](int64_t i) { return d_y[i]; }) / S(size);
      // d std / d x_i = (x_i - mean) / ((size - 1) std), and x_i - mean = y_i / rstd.
      const S along = std > S(0) ? dot(size, y, d_y) / (S(size - 1) * std) : S(0);
      for (int64_t i = 0; i < size; ++i) { put(d_x[i], (d_y[i] - mean) * rstd - along * y[i], a.accumulate); }
    });
  });
}

void run(Stream&, const MeanGate& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t width = a.x.size(1);
    parallel_each(a.x.size(0), kGrain, [&](int64_t r) {
      S sum = 0;
      for (int64_t i = 0; i < width; ++i) { sum += a.x.as<S>()[r * width + i]; }
      a.g.as<S>()[r] = sigmoid(sum / S(width));
    });
  });
}

void run(Stream&, const MeanGateBackward& a) {
  dispatch_real(a.g.dtype, [&]<class S>(S) {
    const int64_t width = a.d_x.size(1);
    parallel_each(a.d_x.size(0), kGrain, [&](int64_t r) {
      const S g = a.g.as<S>()[r], d = a.d_g.as<S>()[r] * g * (S(1) - g) / S(width);
      for (int64_t i = 0; i < width; ++i) { put(a.d_x.as<S>()[r * width + i], d, a.accumulate); }
    });
  });
}

void run(Stream&, const GateMix& m) {
  dispatch_real(m.o.dtype, [&]<class S>(S) {
    const int64_t size = m.o.size(1);
    parallel_each(m.o.size(0), kGrain, [&](int64_t r) {
      const S g = m.g.as<S>()[r], *a = m.a.as<S>() + r * size, *b = m.b.as<S>() + r * size;
      S* o = m.o.as<S>() + r * size;
      for (int64_t i = 0; i < size; ++i) { o[i] = g * a[i] + (S(1) - g) * b[i]; }
    });
  });
}

void run(Stream&, const GateMixBackward& m) {
  dispatch_real(m.d_o.dtype, [&]<class S>(S) {
    const int64_t size = m.a.size(1);
    parallel_each(m.a.size(0), kGrain, [&](int64_t r) {
      const S g = m.g.as<S>()[r], *a = m.a.as<S>() + r * size, *b = m.b.as<S>() + r * size,
              *d_o = m.d_o.as<S>() + r * size;
      if (m.d_g.defined()) {
        put(m.d_g.as<S>()[r], lane_sum<S>(size, [&](int64_t i) { return d_o[i] * (a[i] - b[i]); }), m.accumulate_g);
      }
      for (int64_t i = 0; m.d_a.defined() && i < size; ++i) {
        put(m.d_a.as<S>()[r * size + i], g * d_o[i], m.accumulate_a);
      }
      for (int64_t i = 0; m.d_b.defined() && i < size; ++i) {
        put(m.d_b.as<S>()[r * size + i], (S(1) - g) * d_o[i], m.accumulate_b);
      }
    });
  });
}

}  // namespace hebb::cpu
