#include "kernels/token_shift/token_shift.h"

#include <algorithm>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/vec.h"
#include "kernels/token_shift/scratch.h"

namespace hebb {

TokenShiftBackwardScratch plan(Workspace& workspace, const TokenShiftBackward& args) {
  const int64_t blocks = TokenShiftBlocks::count(args.x.size(0) * args.x.size(1));
  return {.partial = workspace.tensor({blocks, args.x.size(2)}, sum_dtype(args.x.dtype), "token shift sums")};
}
HEBB_KERNEL_PLANNED(TokenShiftBackward)

namespace cpu {
namespace {

/// x as it is: keeps compilers from making one multiply-add of the product that x is and of what is added to it.
template <class S> inline Vec<S> rounded(Vec<S> x) {
#if defined(__x86_64__)
  asm("" : "+v"(x.v));
#endif
  return x;
}

}  // namespace

void run(Stream&, const TokenShiftForward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t length = a.x.size(1), channels = a.x.size(2), tokens = a.x.size(0) * length;
    const int32_t* doc_start = a.doc_start.as<int32_t>();
    const S *x = a.x.as<S>(), *mu = a.mu.as<S>(), *carried = a.previous.as<S>();
    S* y = a.y.as<S>();
    parallel_each(tokens, 32, [&](int64_t i) {
      const int64_t t = i % length;
      const S* now = x + i * channels;
      const S* before = nullptr;
      if (doc_start[i] < t) {
        before = t > 0 ? now - channels : carried + (i / length) * channels;
      } else if (!a.zero_start) {
        before = now;
      }
      S* out = y + i * channels;
      for (int64_t c = 0; c < channels; ++c) {
        out[c] = now[c] + mu[c] * ((before != nullptr ? before[c] : S(0)) - now[c]);
      }
    });
  });
}

void run(Stream&, const TokenShiftBackward& a, const TokenShiftBackwardScratch& scratch) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t length = a.x.size(1), channels = a.x.size(2), tokens = a.x.size(0) * length;
    const int64_t blocks = TokenShiftBlocks::count(tokens);
    const int32_t* doc_start = a.doc_start.as<int32_t>();
    const S *x = a.x.as<S>(), *mu = a.mu.as<S>(), *d_y = a.d_y.as<S>();
    S *d_x = a.d_x.as<S>(), *partial = scratch.partial.as<S>();
    parallel_each(blocks, 1, [&](int64_t block) {
      S* d_mu = partial + block * channels;
      std::fill(d_mu, d_mu + channels, S(0));
      for (int64_t i = TokenShiftBlocks::begin(block); i < TokenShiftBlocks::end(block, tokens); ++i) {
        const int64_t t = i % length;
        const bool starts = doc_start[i] >= t, repeats = starts && !a.zero_start;
        const bool feeds_next = t + 1 < length && doc_start[i + 1] <= t;
        const S *now = x + i * channels, *g = d_y + i * channels, *before = starts || t == 0 ? nullptr : now - channels;
        S* out = d_x != nullptr ? d_x + i * channels : nullptr;
        vector_loop<S>(channels, [&](int64_t c, auto lanes) {
          const Vec<S> own = load(g + c, lanes), m = load(mu + c, lanes), zero(S(0));
          if (out != nullptr) {
            const Vec<S> d = repeats ? own : own * (Vec<S>(S(1)) - m);
            const Vec<S> next = feeds_next ? rounded(m * load(g + channels + c, lanes)) : zero;
            put(out + c, d + next, lanes, a.accumulate);
          }
          if (!repeats) {
            const Vec<S> change = (before != nullptr ? load(before + c, lanes) : zero) - load(now + c, lanes);
            store(d_mu + c, fma(own, change, load(d_mu + c, lanes)), lanes);
          }
        });
      }
    });
    add_blocks(a.d_mu, blocks, channels, partial, channels);
  });
}

}  // namespace cpu
}  // namespace hebb
