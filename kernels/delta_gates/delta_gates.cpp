#include "kernels/delta_gates/delta_gates.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/delta_gates/scratch.h"

namespace hebb {

DeltaGatesBackwardScratch plan(Workspace& workspace, const DeltaGatesBackward& args) {
  const int64_t heads = args.a_log.numel(), blocks = DeltaGatesBlocks::count(args.a.numel() / heads);
  return {.partial = workspace.tensor({blocks, 2, heads}, args.d_g.dtype, "gate sums")};
}
HEBB_KERNEL_PLANNED(DeltaGatesBackward)

namespace cpu {
namespace {

/// The per-head constants repeated for a block of tokens, so that loops run over whole vectors
/// whatever the number of heads.
template <class S> struct Constants {
  std::vector<S> rate, bias;  // -exp(A_log), dt_bias

  Constants(const Tensor& a_log, const Tensor& dt_bias)
      : rate(static_cast<size_t>(DeltaGatesBlocks::kTokens * a_log.numel())), bias(rate.size()) {
    const size_t heads = static_cast<size_t>(a_log.numel());
    for (size_t i = 0; i < rate.size(); ++i) {
      rate[i] = i < heads ? -std::exp(a_log.as<S>()[i]) : rate[i - heads];
      bias[i] = i < heads ? dt_bias.as<S>()[i] : bias[i - heads];
    }
  }
};

template <class S> inline Vec<S> step_size(Vec<S> z) { return select(z > Vec<S>(S(20)), z, softplus(z)); }

/// One block of tokens: d_a, d_b and the block's sums of dg g and dz.
template <class S>
void backward_block(const DeltaGatesBackward& a, S* partial, const Constants<S>& constants, int64_t block) {
  const int64_t heads = a.a_log.numel(), tokens = a.a.numel() / heads;
  const int64_t at = DeltaGatesBlocks::begin(block) * heads,
                count = std::min(tokens * heads - at, DeltaGatesBlocks::kTokens * heads);
  const S *la = a.a.as<S>() + at, *g = a.g.as<S>() + at, *beta = a.beta.as<S>() + at;
  const S *d_g = a.d_g.as<S>() + at, *d_beta = a.d_beta.as<S>() + at;
  S *d_a = a.d_a.defined() ? a.d_a.as<S>() + at : nullptr, *d_b = a.d_b.defined() ? a.d_b.as<S>() + at : nullptr;
  S *sum_log = partial + block * 2 * heads, *sum_bias = sum_log + heads;
  const Vec<S> one(S(1)), inverse_scale(static_cast<S>(1.0 / a.beta_scale));
  const Vec<S> low(static_cast<S>(a.dt_low)), high(static_cast<S>(a.dt_high));
  std::vector<S> d_z(static_cast<size_t>(count));
  vector_loop<S>(count, [&](int64_t i, auto lanes) {
    const Vec<S> z = load(la + i, lanes) + load(constants.bias.data() + i, lanes);
    Vec<S> d_dt = load(d_g + i, lanes) * load(constants.rate.data() + i, lanes);
    if (a.b_is_step) {
      const Vec<S> dt = step_size(z), zero(S(0));
      d_dt = d_dt + load(d_beta + i, lanes);
      d_dt = select(dt < low, zero, select(dt > high, zero, d_dt));
    }
    const Vec<S> dz = d_dt * sigmoid(z);
    store(d_z.data() + i, dz, lanes);
    if (d_a != nullptr) { put(d_a + i, dz, lanes, a.accumulate_a); }
    if (d_b != nullptr) {
      const Vec<S> b = load(beta + i, lanes);
      put(d_b + i, load(d_beta + i, lanes) * b * (one - b * inverse_scale), lanes, a.accumulate_b);
    }
  });
  std::fill_n(sum_log, 2 * heads, S(0));
  for (int64_t i = 0; i < count; i += heads) {
    for (int64_t h = 0; h < heads; ++h) {
      sum_log[h] += d_g[i + h] * g[i + h];
      sum_bias[h] += d_z[static_cast<size_t>(i + h)];
    }
  }
}

}  // namespace

void run(Stream&, const DeltaGatesForward& a) {
  dispatch_real(a.a.dtype, [&]<class S>(S) {
    const int64_t heads = a.a_log.numel(), tokens = a.a.numel() / heads;
    parallel_for(DeltaGatesBlocks::count(tokens), 4, [&](int64_t begin, int64_t end) {
      const Constants<S> constants(a.a_log, a.dt_bias);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = DeltaGatesBlocks::begin(block) * heads,
                      count = std::min(tokens * heads - at, DeltaGatesBlocks::kTokens * heads);
        const S *la = a.a.as<S>() + at, *lb = a.b.defined() ? a.b.as<S>() + at : nullptr;
        S *g = a.g.as<S>() + at, *beta = a.beta.as<S>() + at;
        const Vec<S> low(static_cast<S>(a.dt_low)), high(static_cast<S>(a.dt_high));
        vector_loop<S>(count, [&](int64_t i, auto lanes) {
          const Vec<S> z = load(la + i, lanes) + load(constants.bias.data() + i, lanes);
          Vec<S> dt = step_size(z);
          dt = lb != nullptr ? dt : min(high, max(low, dt));
          store(g + i, load(constants.rate.data() + i, lanes) * dt, lanes);
          store(beta + i, lb != nullptr ? Vec<S>(static_cast<S>(a.beta_scale)) * sigmoid(load(lb + i, lanes)) : dt,
                lanes);
        });
      }
    });
  });
}

void run(Stream&, const DeltaGatesBackward& a, const DeltaGatesBackwardScratch& scratch) {
  dispatch_real(a.a.dtype, [&]<class S>(S) {
    const int64_t heads = a.a_log.numel(), blocks = DeltaGatesBlocks::count(a.a.numel() / heads);
    S* const partial = scratch.partial.as<S>();
    parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
      const Constants<S> constants(a.a_log, a.dt_bias);
      for (int64_t block = begin; block < end; ++block) { backward_block(a, partial, constants, block); }
    });
    add_blocks(a.d_a_log, blocks, heads, partial, 2 * heads);
    add_blocks(a.d_dt_bias, blocks, heads, partial + heads, 2 * heads);
  });
}

}  // namespace cpu
}  // namespace hebb
