#include "kernels/channel_skip/channel_skip.h"

#include "kernels/channel_skip/scratch.h"
#include "kernels/common/cuda/dispatch_wide.cuh"
#include "kernels/common/cuda/fast_divide.cuh"

// Bound by HBM: 3 passes forward, 4 backward.
namespace hebb::HEBB_DEVICE {
namespace {

/// to += scale from; a scale holds for `width` channels, a multiple of N.
template <class To, class From, int N> struct AddScaledChannels {
  To* to;
  const From* from;
  const float* scale;
  int64_t channels, width;

  __device__ void operator()(int64_t token, int64_t pack) const {
    const int64_t c = pack * N;
    const float factor = scale[Split(c, width).quotient];
    float value[N];
    load_pack(value, from + token * channels, c, channels, N > 1);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { value[j] *= factor; }
    write_pack(to + token * channels, c, channels, N > 1, value, true);
  }
};

// A thread goes over the tokens of a block in a pack of channels.
template <class D, class T, int N> struct BlockSums {
  float* partial;
  const D* d_y;
  const T* x;
  int64_t tokens, channels;

  __device__ void operator()(int64_t block, int64_t pack) const {
    const int64_t c = pack * N, last = ChannelSkipBlocks::end(block, tokens);
    float sum[N] = {};
    for (int64_t token = ChannelSkipBlocks::begin(block); token < last; ++token) {
      float a[N], b[N];
      load_pack(a, d_y + token * channels, c, channels, N > 1);
      load_pack(b, x + token * channels, c, channels, N > 1);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { sum[j] += a[j] * b[j]; }
    }
    store_pack(partial + block * channels, c, channels, N > 1, sum);
  }
};

/// One warp a scale: its channels of all blocks.
struct AddSums {
  float* d_scale;
  const float* partial;
  int64_t blocks, channels, width;

  __device__ void operator()(int64_t i, int lane) const {
    float sum = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t c = lane; c < width; c += 32) { sum += partial[block * channels + i * width + c]; }
    }
    sum = warp_sum(sum);
    if (lane == 0) { d_scale[i] += sum; }
  }
};

/// to += scale from, both of `shape`'s shape, in packs of the wider type W.
template <class W, class To, class From>
void add_scaled(Stream& stream, const char* name, To* to, const From* from, const Tensor& shape, const Tensor& scale) {
  const int64_t tokens = shape.size(0), channels = shape.numel() / tokens, width = channels / scale.numel();
  dispatch_pack<W>(width, {to, from}, [&](auto pack) {
    each_element(name, stream, tokens, channels / pack(),
                 AddScaledChannels<To, From, pack()>{to, from, scale.as<float>(), channels, width});
  });
}

}  // namespace

void run(Stream& stream, const ChannelSkipForward& a) {
  dispatch_wide(a.y.dtype, a.x.dtype, [&]<class Y, class T>(Y, T) {
    add_scaled<Y>(stream, "channel_skip_forward", a.y.as<Y>(), a.x.as<T>(), a.y, a.scale);
  });
}

void run(Stream& stream, const ChannelSkipBackward& a, const ChannelSkipBackwardScratch& scratch) {
  const int64_t tokens = a.d_y.size(0), channels = a.d_y.numel() / tokens, blocks = ChannelSkipBlocks::count(tokens);
  dispatch_wide(a.d_y.dtype, a.x.dtype, [&]<class D, class T>(D, T) {
    if (a.d_x.defined()) {
      add_scaled<D>(stream, "channel_skip_backward", a.d_x.as<T>(), a.d_y.as<D>(), a.d_y, a.scale);
    }
    if (a.d_scale.defined()) {
      float* const partial = scratch.partial.as<float>();
      dispatch_pack<D>(channels, {partial, a.d_y.data, a.x.data}, [&](auto pack) {
        each_element("channel_skip_sums", stream, blocks, channels / pack(),
                     BlockSums<D, T, pack()>{partial, a.d_y.as<D>(), a.x.as<T>(), tokens, channels});
      });
      const int64_t heads = a.d_scale.numel();
      each_warp("channel_skip_scales", stream, heads,
                AddSums{a.d_scale.as<float>(), partial, blocks, channels, channels / heads});
    }
  });
}

}  // namespace hebb::HEBB_DEVICE
