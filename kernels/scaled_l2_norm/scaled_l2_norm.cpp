#include "kernels/scaled_l2_norm/scaled_l2_norm.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "kernels/common/cpu/vec.h"
#include "kernels/scaled_l2_norm/scratch.h"

namespace hebb {
namespace {
constexpr double kEps = 1e-6;
}  // namespace

ScaledL2NormBackwardScratch plan(Workspace& workspace, const ScaledL2NormBackward& args) {
  return {.partial = workspace.tensor({ScaledL2NormBlocks::count(args.x.size(0)), args.x.size(1)},
                                      sum_dtype(args.x.dtype), "l2 norm sums")};
}
HEBB_KERNEL_PLANNED(ScaledL2NormBackward)

namespace cpu {
namespace {

template <class S> S product(int64_t n, const S* a, const S* b) {
  Vec<S> total(S(0));
  vector_loop<S>(n, [&](int64_t i, auto lanes) { total = fma(load(a + i, lanes), load(b + i, lanes), total); });
  return sum(total);
}

template <class S> void forward(const ScaledL2NormForward& a) {
  const int64_t heads = a.x.size(1), d = a.x.size(2);
  const S *x = a.x.as<S>(), *scale = a.scale.as<S>();
  S* y = a.y.as<S>();
  parallel_each(a.x.size(0) * heads, ScaledL2NormBlocks::kTokens, [&](int64_t r) {
    const S* in = x + r * d;
    const S length = std::sqrt(product(d, in, in) + static_cast<S>(kEps));
    const Vec<S> f(scale[r % heads] / length);
    vector_loop<S>(d, [&](int64_t i, auto lanes) { store(y + r * d + i, load(in + i, lanes) * f, lanes); });
  });
}

template <class S> void backward(const ScaledL2NormBackward& a, const ScaledL2NormBackwardScratch& scratch) {
  const int64_t tokens = a.x.size(0), heads = a.x.size(1), d = a.x.size(2), blocks = ScaledL2NormBlocks::count(tokens);
  const S *x = a.x.as<S>(), *scale = a.scale.as<S>(), *d_y = a.d_y.as<S>();
  S *d_x = a.d_x.as<S>(), *partial = scratch.partial.as<S>();
  parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      std::fill_n(partial + block * heads, heads, S(0));
      const int64_t end = ScaledL2NormBlocks::end(block, tokens) * heads;
      for (int64_t r = ScaledL2NormBlocks::begin(block) * heads; r < end; ++r) {
        const S *in = x + r * d, *g = d_y + r * d;
        const S inverse = S(1) / std::sqrt(product(d, in, in) + static_cast<S>(kEps));
        const S along = product(d, in, g) * inverse;  // unit vector . d_y
        partial[block * heads + r % heads] += along;
        if (d_x == nullptr) { continue; }
        // d_x = scale (d_y - unit (unit . d_y)) / length
        const Vec<S> f(scale[r % heads] * inverse), back(-along * inverse);
        S* out = d_x + r * d;
        vector_loop<S>(d, [&](int64_t i, auto lanes) {
          const Vec<S> grad = fma(load(in + i, lanes), back, load(g + i, lanes)) * f;
          store(out + i, a.accumulate ? load(out + i, lanes) + grad : grad, lanes);
        });
      }
    }
  });
  for (int64_t block = 0; a.d_scale.defined() && block < blocks; ++block) {
    for (int64_t h = 0; h < heads; ++h) { a.d_scale.as<S>()[h] += partial[block * heads + h]; }
  }
}

}  // namespace

void run(Stream&, const ScaledL2NormForward& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { forward<S>(args); });
}

void run(Stream&, const ScaledL2NormBackward& args, const ScaledL2NormBackwardScratch& scratch) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { backward<S>(args, scratch); });
}

}  // namespace cpu
}  // namespace hebb
