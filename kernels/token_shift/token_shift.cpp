#include "kernels/token_shift/token_shift.h"

#include <algorithm>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/token_shift/scratch.h"

namespace hebb {

TokenShiftBackwardScratch plan(Workspace& workspace, const TokenShiftBackward& args) {
  const int64_t blocks = TokenShiftBlocks::count(args.x.size(0) * args.x.size(1));
  return {.partial = workspace.tensor({blocks, args.x.size(2)}, sum_dtype(args.x.dtype), "token shift sums")};
}
HEBB_KERNEL_PLANNED(TokenShiftBackward)

namespace cpu {

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
        const S *now = x + i * channels, *g = d_y + i * channels, *g_next = g + channels;
        for (int64_t c = 0; c < channels; ++c) {
          S d = repeats ? g[c] : g[c] * (S(1) - mu[c]);
          d += feeds_next ? mu[c] * g_next[c] : S(0);
          if (d_x != nullptr) { put(d_x[i * channels + c], d, a.accumulate); }

          if (!repeats) { d_mu[c] += g[c] * ((starts || t == 0 ? S(0) : now[c - channels]) - now[c]); }
        }
      }
    });
    add_blocks(a.d_mu, blocks, channels, partial, channels);
  });
}

}  // namespace cpu
}  // namespace hebb
