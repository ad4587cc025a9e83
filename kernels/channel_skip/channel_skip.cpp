#include "kernels/channel_skip/channel_skip.h"

#include <algorithm>

#include "core/parallel.h"
#include "kernels/channel_skip/scratch.h"
#include "kernels/common/cpu/simd.h"

namespace hebb {

ChannelSkipBackwardScratch plan(Workspace& workspace, const ChannelSkipBackward& args) {
  if (!args.d_scale.defined()) { return {}; }
  const int64_t tokens = args.d_y.size(0), channels = args.d_y.numel() / tokens;
  return {.partial =
              workspace.tensor({ChannelSkipBlocks::count(tokens), channels}, sum_dtype(args.x.dtype), "skip sums")};
}
HEBB_KERNEL_PLANNED(ChannelSkipBackward)

namespace cpu {
namespace {

/// to += scale from for one token: in runs of channels of one scale or, with one each, all at once.
template <class S> void add_scaled(const Tensor& scale, int64_t channels, const S* from, S* to) {
  const bool by_channel = scale.numel() == channels;
  const int64_t runs = by_channel ? 1 : scale.numel(), width = channels / runs;
  for (int64_t run = 0; run < runs; ++run) {
    vector_loop<S>(width, [&](int64_t c, auto lanes) {
      const Vec<S> s = by_channel ? load(scale.as<S>() + c, lanes) : Vec<S>(scale.as<S>()[run]);
      const int64_t at = run * width + c;
      store(to + at, fma(s, load(from + at, lanes), load(to + at, lanes)), lanes);
    });
  }
}

}  // namespace

void run(Stream&, const ChannelSkipForward& a) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    const int64_t tokens = a.y.size(0), channels = a.y.numel() / tokens;
    parallel_each(tokens, 64, [&](int64_t t) {
      add_scaled<S>(a.scale, channels, a.x.as<S>() + t * channels, a.y.as<S>() + t * channels);
    });
  });
}

void run(Stream&, const ChannelSkipBackward& a, const ChannelSkipBackwardScratch& scratch) {
  dispatch_real(a.d_y.dtype, [&]<class S>(S) {
    const int64_t tokens = a.d_y.size(0), channels = a.d_y.numel() / tokens, blocks = ChannelSkipBlocks::count(tokens);
    parallel_each(blocks, 1, [&](int64_t block) {
      S* sums = a.d_scale.defined() ? scratch.partial.as<S>() + block * channels : nullptr;
      if (sums != nullptr) { std::fill_n(sums, channels, S(0)); }
      for (int64_t t = ChannelSkipBlocks::begin(block); t < ChannelSkipBlocks::end(block, tokens); ++t) {
        const S *d_y = a.d_y.as<S>() + t * channels, *x = a.x.as<S>() + t * channels;
        if (sums != nullptr) {
          vector_loop<S>(channels, [&](int64_t c, auto lanes) {
            store(sums + c, fma(load(d_y + c, lanes), load(x + c, lanes), load(sums + c, lanes)), lanes);
          });
        }
        if (a.d_x.defined()) { add_scaled<S>(a.scale, channels, d_y, a.d_x.as<S>() + t * channels); }
      }
    });
    if (a.d_scale.defined()) {
      const int64_t width = channels / a.d_scale.numel();
      for (int64_t i = 0; i < blocks * channels; ++i) {
        a.d_scale.as<S>()[i % channels / width] += scratch.partial.as<S>()[i];
      }
    }
  });
}

}  // namespace cpu
}  // namespace hebb
