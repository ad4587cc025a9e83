#include "kernels/activation/activation.h"

#include "core/parallel.h"
#include "kernels/common/formulas.h"

namespace hebb::cpu {
namespace {

constexpr int64_t kGrain = 1 << 13;

}  // namespace

void run(Stream&, const SwigluForward& a) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    S* __restrict y = a.y.as<S>();
    const S* __restrict gate = a.gate.as<S>(), * __restrict up = a.up.as<S>();
    parallel_each(a.y.numel(), kGrain, [=](int64_t i) { y[i] = gate[i] * sigmoid(gate[i]) * up[i]; });
  });
}

void run(Stream&, const SwigluBackward& a) {
  dispatch_real(a.d_y.dtype, [&]<class S>(S) {
    S* __restrict d_gate = a.d_gate.as<S>(), * __restrict d_up = a.d_up.as<S>();
    const S* __restrict d_y = a.d_y.as<S>(), * __restrict gate = a.gate.as<S>(), * __restrict up = a.up.as<S>();
    parallel_each(a.d_y.numel(), kGrain, [=](int64_t i) {
      const S s = sigmoid(gate[i]), silu = gate[i] * s;
      const S g = d_y[i];
      d_up[i] = g * silu;
      d_gate[i] = g * up[i] * (s + silu * (S(1) - s));
    });
  });
}

void run(Stream&, const Relu2Forward& a) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    S* __restrict y = a.y.as<S>();
    const S* __restrict x = a.x.as<S>();
    parallel_each(a.y.numel(), kGrain, [=](int64_t i) {
      const S r = x[i] > S(0) ? x[i] : S(0);
      y[i] = r * r;
    });
  });
}

void run(Stream&, const Relu2Backward& a) {
  dispatch_real(a.d_y.dtype, [&]<class S>(S) {
    S* __restrict d_x = a.d_x.as<S>();
    const S* __restrict d_y = a.d_y.as<S>(), * __restrict x = a.x.as<S>();
    parallel_each(a.d_y.numel(), kGrain, [=](int64_t i) { d_x[i] = S(2) * (x[i] > S(0) ? x[i] : S(0)) * d_y[i]; });
  });
}

}  // namespace hebb::cpu
