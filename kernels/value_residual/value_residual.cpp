#include "kernels/value_residual/value_residual.h"

#include <algorithm>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/value_residual/scratch.h"

namespace hebb {

ValueResidualBackwardScratch plan(Workspace& workspace, const ValueResidualBackward& args) {
  if (args.gated) { return {}; }
  return {.partial = workspace.tensor({ValueResidualBlocks::count(args.v.size(0)), args.v.size(1)},
                                      sum_dtype(args.v.dtype), "value residual sums")};
}
HEBB_KERNEL_PLANNED(ValueResidualBackward)

namespace cpu {
namespace {

/// One token; sums [C] collect d_lambda where lambda is a parameter.
template <class S> void backward_token(const ValueResidualBackward& a, int64_t channels, int64_t at, S* sums) {
  const S *v = a.v.as<S>() + at, *first = a.first.as<S>() + at, *d_y = a.d_y.as<S>() + at;
  const S* mix = a.gated ? a.mix.as<S>() + at : a.mix.as<S>();
  const Vec<S> one(S(1));
  vector_loop<S>(channels, [&](int64_t c, auto lanes) {
    const Vec<S> g = load(d_y + c, lanes);
    const Vec<S> lambda = a.gated ? sigmoid(load(mix + c, lanes)) : load(mix + c, lanes);
    const Vec<S> d_lambda = g * (load(first + c, lanes) - load(v + c, lanes));
    if (a.d_v.defined()) { put(a.d_v.as<S>() + at + c, (one - lambda) * g, lanes, a.accumulate_v); }
    if (a.d_first.defined()) { put(a.d_first.as<S>() + at + c, lambda * g, lanes, a.accumulate_first); }
    if (!a.gated) {
      put(sums + c, d_lambda, lanes, true);
    } else if (a.d_mix.defined()) {
      put(a.d_mix.as<S>() + at + c, d_lambda * lambda * (one - lambda), lanes, a.accumulate_mix);
    }
  });
}

}  // namespace

void run(Stream&, const ValueResidualForward& a) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const int64_t tokens = a.v.size(0), channels = a.v.size(1);
    const S *v = a.v.as<S>(), *first = a.first.as<S>(), *mix = a.mix.as<S>();
    S* y = a.y.as<S>();
    parallel_each(tokens, ValueResidualBlocks::kTokens, [&](int64_t n) {
      const int64_t at = n * channels;
      vector_loop<S>(channels, [&](int64_t c, auto lanes) {
        const Vec<S> x = load(v + at + c, lanes);
        const Vec<S> lambda = a.gated ? sigmoid(load(mix + at + c, lanes)) : load(mix + c, lanes);
        store(y + at + c, fma(lambda, load(first + at + c, lanes) - x, x), lanes);
      });
    });
  });
}

void run(Stream&, const ValueResidualBackward& a, const ValueResidualBackwardScratch& scratch) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const int64_t tokens = a.v.size(0), channels = a.v.size(1), blocks = ValueResidualBlocks::count(tokens);
    S* partial = scratch.partial.as<S>();
    parallel_each(blocks, 1, [&](int64_t block) {
      S* sums = a.gated ? nullptr : partial + block * channels;
      if (!a.gated) { std::fill_n(sums, channels, S(0)); }
      for (int64_t n = ValueResidualBlocks::begin(block); n < ValueResidualBlocks::end(block, tokens); ++n) {
        backward_token(a, channels, n * channels, sums);
      }
    });
    if (!a.gated) { add_blocks(a.d_mix, blocks, channels, partial, channels); }
  });
}

}  // namespace cpu
}  // namespace hebb
