#include "kernels/norm/norm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/parallel.h"
#include "kernels/common/cpu/lane_products.h"
#include "kernels/common/cpu/math.h"
#include "kernels/norm/scratch.h"

namespace hebb {

NormBackwardScratch plan(Workspace& workspace, const NormBackward& args) {
  const int64_t d = args.weight.numel(), rows = args.h.numel() / d;
  // 32 rows or more, and enough blocks to fill a GPU. A function of the number of rows, never of threads.
  const int64_t blocks = std::clamp<int64_t>((rows + 31) / 32, 1, 1024);
  return {.partial = workspace.tensor({blocks, 2, d}, sum_dtype(args.h.dtype), "norm partial sums")};
}
HEBB_KERNEL_PLANNED(NormBackward)

namespace cpu {
namespace {

constexpr int64_t kRowGrain = 16;

/// One row: d_h from d_y, and this row's share of the weight gradients.
template <class S> void backward_row(const NormBackward& a, int64_t r, int64_t d, S* d_weight, S* d_bias) {
  using V = Vec<S>;
  const S *dy = a.d_y.as<S>() + r * d, *x = a.h.as<S>() + r * d, *w = a.weight.as<S>();
  const S* d_out = a.d_h_out.defined() ? a.d_h_out.as<S>() + r * d : nullptr;
  S* dh = a.d_h.defined() ? a.d_h.as<S>() + r * d : nullptr;
  S* db = a.d_branch.defined() ? a.d_branch.as<S>() + r * d : nullptr;
  const bool layer = a.kind == NormKind::layer;
  const V offset(a.kind == NormKind::rms_unit_offset ? S(1) : S(0));
  const V m(layer ? a.mean.as<S>()[r] : S(0)), s(a.rstd.as<S>()[r]);
  // n = (x - m) s is the normed row; d_x = s (g - mean(g) [layer] - n mean(g n)), g = dy (w + offset).
  LaneProducts<S> along;
  along.add(d, [&](int64_t i, auto lanes) {
    return std::pair(load(dy + i, lanes) * (load(w + i, lanes) + offset) * (load(x + i, lanes) - m), s);
  });
  const V gn(sum(along.lanes()) / static_cast<S>(d));
  const V g1(layer ? dot(d, dy, w) / static_cast<S>(d) : S(0));
  vector_loop<S>(d, [&](int64_t i, auto lanes) {
    const V share = load(dy + i, lanes) * (load(x + i, lanes) - m);
    store(d_weight + i, fma(share, s, load(d_weight + i, lanes)), lanes);
    if (layer) { store(d_bias + i, load(d_bias + i, lanes) + load(dy + i, lanes), lanes); }
  });
  if (dh == nullptr && db == nullptr) { return; }
  const V rho(static_cast<S>(a.rho)), zero(S(0));
  vector_loop<S>(d, [&](int64_t i, auto lanes) {
    const V n = (load(x + i, lanes) - m) * s;
    const V inner = fma(-n, gn, fma(load(dy + i, lanes), load(w + i, lanes) + offset, -g1));
    const V g = fma(s, inner, d_out != nullptr ? load(d_out + i, lanes) : zero);
    if (db != nullptr) { store(db + i, rho * g, lanes); }
    if (dh != nullptr) { put(dh + i, g, lanes, a.accumulate); }
  });
}

}  // namespace

void run(Stream&, const NormForward& a) {
  dispatch_real(a.h.dtype, [&]<class S>(S) {
    const int64_t d = a.weight.numel(), rows = a.h.numel() / d;
    const S *h = a.h.as<S>(), *branch = a.branch.as<S>(), *w = a.weight.as<S>(), *bias = a.bias.as<S>();
    S *y = a.y.as<S>(), *h_out = a.h_out.as<S>(), *mean = a.mean.as<S>(), *rstd = a.rstd.as<S>();
    const S rho = static_cast<S>(a.rho), offset = a.kind == NormKind::rms_unit_offset ? S(1) : S(0);
    parallel_each(rows, kRowGrain, [&](int64_t r) {
      const S* x = h + r * d;
      if (branch != nullptr) {
        const S* br = branch + r * d;
        S* sum = h_out + r * d;
        for (int64_t i = 0; i < d; ++i) { sum[i] = x[i] + rho * br[i]; }
        x = sum;
      }
      S* out = y + r * d;
      if (a.kind == NormKind::layer) {
        const S m = lane_sum<S>(d, [&](int64_t i) { return x[i]; }) / static_cast<S>(d);
        const S var = lane_sum<S>(d, [&](int64_t i) { return (x[i] - m) * (x[i] - m); }) / static_cast<S>(d);
        const S s = S(1) / std::sqrt(var + static_cast<S>(a.eps));
        for (int64_t i = 0; i < d; ++i) { out[i] = (x[i] - m) * s * w[i] + bias[i]; }
        mean[r] = m;
        rstd[r] = s;
      } else {
        const S s = S(1) / std::sqrt(dot(d, x, x) / static_cast<S>(d) + static_cast<S>(a.eps));
        for (int64_t i = 0; i < d; ++i) { out[i] = x[i] * s * (w[i] + offset); }
        rstd[r] = s;
      }
    });
  });
}

void run(Stream&, const NormBackward& a, const NormBackwardScratch& scratch) {
  dispatch_real(a.h.dtype, [&]<class S>(S) {
    const int64_t d = a.weight.numel(), rows = a.h.numel() / d;
    const int64_t blocks = scratch.blocks(), per_block = (rows + blocks - 1) / blocks;
    S* partial = scratch.partial.as<S>();
    parallel_each(blocks, 1, [&](int64_t b) {
      S *dw = partial + b * 2 * d, *db = dw + d;
      std::fill(dw, dw + 2 * d, S(0));
      for (int64_t r = b * per_block; r < std::min(rows, (b + 1) * per_block); ++r) {
        backward_row<S>(a, r, d, dw, db);
      }
    });
    add_blocks(a.d_weight, blocks, d, partial, 2 * d);
    if (a.kind == NormKind::layer) { add_blocks(a.d_bias, blocks, d, partial + d, 2 * d); }
  });
}

}  // namespace cpu
}  // namespace hebb
