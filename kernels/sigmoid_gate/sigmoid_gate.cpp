#include "kernels/sigmoid_gate/sigmoid_gate.h"

#include <algorithm>

#include "core/parallel.h"
#include "kernels/common/cpu/simd.h"

namespace hebb::cpu {
namespace {

constexpr int64_t kElements = 1 << 12;  // of a range

/// Calls f(row, channels) for rows of [N H, C] whose gate is one number, or of the flat memory.
template <class F> void each_row(const Tensor& x, const Tensor& gate, F&& f) {
  const bool by_head = gate.numel() != x.numel();
  const int64_t channels = by_head ? x.size(2) : std::min<int64_t>(x.numel(), kElements);
  const int64_t rows = (x.numel() + channels - 1) / channels;
  parallel_each(rows, std::max<int64_t>(1, kElements / channels),
                [&](int64_t r) { f(r, r * channels, std::min(channels, x.numel() - r * channels)); });
}

}  // namespace

void run(Stream&, const SigmoidGateForward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const S *x = a.x.as<S>(), *gate = a.gate.as<S>();
    S* y = a.y.as<S>();
    const bool by_head = a.gate.numel() != a.x.numel();
    each_row(a.x, a.gate, [&](int64_t row, int64_t at, int64_t n) {
      const Vec<S> head = by_head ? sigmoid(Vec<S>(gate[row])) : Vec<S>(S(0));
      vector_loop<S>(n, [&](int64_t i, auto lanes) {
        const Vec<S> s = by_head ? head : sigmoid(load(gate + at + i, lanes));
        store(y + at + i, load(x + at + i, lanes) * s, lanes);
      });
    });
  });
}

void run(Stream&, const SigmoidGateBackward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const S *x = a.x.as<S>(), *gate = a.gate.as<S>(), *d_y = a.d_y.as<S>();
    S *d_x = a.d_x.as<S>(), *d_gate = a.d_gate.as<S>();
    const bool by_head = a.gate.numel() != a.x.numel();
    const Vec<S> one(S(1));
    each_row(a.x, a.gate, [&](int64_t row, int64_t at, int64_t n) {
      const Vec<S> head = by_head ? sigmoid(Vec<S>(gate[row])) : Vec<S>(S(0));
      Vec<S> total(S(0));
      vector_loop<S>(n, [&](int64_t i, auto lanes) {
        const Vec<S> s = by_head ? head : sigmoid(load(gate + at + i, lanes));
        const Vec<S> g = load(d_y + at + i, lanes);
        if (d_x != nullptr) {
          store(d_x + at + i, a.accumulate_x ? fma(g, s, load(d_x + at + i, lanes)) : g * s, lanes);
        }
        const Vec<S> d = g * load(x + at + i, lanes) * s * (one - s);
        if (by_head) {
          total += d;
        } else if (d_gate != nullptr) {
          put(d_gate + at + i, d, lanes, a.accumulate_gate);
        }
      });
      if (by_head && d_gate != nullptr) { d_gate[row] = (a.accumulate_gate ? d_gate[row] : S(0)) + sum(total); }
    });
  });
}

}  // namespace hebb::cpu
