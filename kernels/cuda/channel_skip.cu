#include "kernels/channel_skip.h"

#include "kernels/cuda/common/prelude.h"

// Bound by HBM: 3 passes forward, 4 backward.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kBlock = 64;  // tokens of one partial sum, as in channel_skip_blocks

/// to += scale from; a scale holds for `width` channels.
template <class T>
struct AddScaledChannels {
  T* to;
  const T* from;
  const float* scale;
  int64_t channels, width;

  __device__ void operator()(int64_t token, int64_t c) const {
    write(to[token * channels + c], scale[c / width] * to_float(from[token * channels + c]), true);
  }
};

// A thread walks over the tokens of a block in one channel.
template <class T>
struct BlockSums {
  float* partial;
  const T *d_y, *x;
  int64_t tokens, channels;

  __device__ void operator()(int64_t block, int64_t c) const {
    const int64_t last = (block + 1) * kBlock < tokens ? (block + 1) * kBlock : tokens;
    float sum = 0;
    for (int64_t at = block * kBlock * channels + c; at < last * channels; at += channels) {
      sum += to_float(d_y[at]) * to_float(x[at]);
    }
    partial[block * channels + c] = sum;
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
      for (int64_t c = lane; c < width; c += 32) {
        sum += partial[block * channels + i * width + c];
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      d_scale[i] += sum;
    }
  }
};

}  // namespace

void run(Stream& stream, const ChannelSkipForward& a) {
  const int64_t tokens = a.y.size(0), channels = a.y.numel() / tokens;
  dispatch_float(a.y.dtype, [&](auto zero) {
    using T = decltype(zero);
    each_element("channel_skip_forward", stream, tokens, channels,
                 AddScaledChannels<T>{a.y.as<T>(), a.x.as<T>(), a.scale.as<float>(), channels, channels / a.scale.numel()});
  });
}

void run(Stream& stream, const ChannelSkipBackward& a) {
  const int64_t tokens = a.d_y.size(0), channels = a.d_y.numel() / tokens, blocks = channel_skip_blocks(tokens);
  dispatch_float(a.d_y.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (a.d_x.defined()) {
      each_element("channel_skip_backward", stream, tokens, channels,
                   AddScaledChannels<T>{a.d_x.as<T>(), a.d_y.as<T>(), a.scale.as<float>(), channels, channels / a.scale.numel()});
    }
    if (a.d_scale.defined()) {
      float* const partial = a.partial.as<float>();
      each_element("channel_skip_sums", stream, blocks, channels, BlockSums<T>{partial, a.d_y.as<T>(), a.x.as<T>(), tokens, channels});
      const int64_t heads = a.d_scale.numel();
      each_warp("channel_skip_scales", stream, heads, AddSums{a.d_scale.as<float>(), partial, blocks, channels, channels / heads});
    }
  });
}

}  // namespace hebb::HEBB_DEVICE
