#include "kernels/scaled_l2_norm/scaled_l2_norm.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
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

void run(Stream&, const ScaledL2NormForward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t heads = a.x.size(1), d = a.x.size(2);
    const S *x = a.x.as<S>(), *scale = a.scale.as<S>();
    S* y = a.y.as<S>();
    parallel_each(a.x.size(0) * heads, ScaledL2NormBlocks::kTokens, [&](int64_t r) {
      const S* in = x + r * d;
      const S length = std::sqrt(dot_row(d, in, in) + static_cast<S>(kEps));
      const Vec<S> f(scale[r % heads] / length);
      vector_loop<S>(d, [&](int64_t i, auto lanes) { store(y + r * d + i, load(in + i, lanes) * f, lanes); });
    });
  });
}

void run(Stream&, const ScaledL2NormBackward& a, const ScaledL2NormBackwardScratch& scratch) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t tokens = a.x.size(0), heads = a.x.size(1), d = a.x.size(2),
                  blocks = ScaledL2NormBlocks::count(tokens);
    const S *x = a.x.as<S>(), *scale = a.scale.as<S>(), *d_y = a.d_y.as<S>();
    S *d_x = a.d_x.as<S>(), *partial = scratch.partial.as<S>();
    parallel_each(blocks, 1, [&](int64_t block) {
      std::fill_n(partial + block * heads, heads, S(0));
      const int64_t end = ScaledL2NormBlocks::end(block, tokens) * heads;
      for (int64_t r = ScaledL2NormBlocks::begin(block) * heads; r < end; ++r) {
        const S *in = x + r * d, *g = d_y + r * d;
        const S inverse = S(1) / std::sqrt(dot_row(d, in, in) + static_cast<S>(kEps));
        const S along = dot_row(d, in, g) * inverse;  // unit vector . d_y
        partial[block * heads + r % heads] += along;
        if (d_x == nullptr) { continue; }
        // d_x = scale (d_y - unit (unit . d_y)) / length
        const Vec<S> f(scale[r % heads] * inverse), back(-along * inverse);
        S* out = d_x + r * d;
        vector_loop<S>(d, [&](int64_t i, auto lanes) {
          put(out + i, fma(load(in + i, lanes), back, load(g + i, lanes)) * f, lanes, a.accumulate);
        });
      }
    });
    add_blocks(a.d_scale, blocks, heads, partial, heads);
  });
}

}  // namespace cpu
}  // namespace hebb
