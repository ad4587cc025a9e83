#include "kernels/short_conv/short_conv.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/short_conv/scratch.h"

namespace hebb {

ShortConvBackwardScratch plan(Workspace& workspace, const ShortConvBackward& args) {
  if (!args.d_weight.defined() && !args.d_bias.defined()) { return {}; }
  const int64_t blocks = args.x.size(0) * ShortConvBlocks::count(args.x.size(1));
  return {.partial = workspace.tensor({blocks, args.weight.size(1) + 1, args.x.size(2)}, sum_dtype(args.x.dtype),
                                      "convolution sums")};
}
HEBB_KERNEL_PLANNED(ShortConvBackward)

namespace cpu {
namespace {

/// A tile of channels of the filter, taps in rows: tap l multiplies x_{t-l}. Tiles are wide, since
/// rows of x are read one after the other and short pieces of them defeat the prefetchers.
template <class S> class Filter {
 public:
  static constexpr int64_t kChannels = 256;

  Filter(const Tensor& weight, const Tensor& bias)
      : weight_(weight.as<S>()),
        bias_(bias.as<S>()),
        taps_(weight.defined() ? weight.size(1) : 1),
        rows_(static_cast<size_t>((taps_ + 1) * kChannels)) {}

  int64_t taps() const { return taps_; }
  void select(int64_t first, int64_t width) {
    for (int64_t c = 0; c < width; ++c) {
      for (int64_t l = 0; l < taps_; ++l) {
        rows_[static_cast<size_t>(l * kChannels + c)] =
            weight_ != nullptr ? weight_[(first + c) * taps_ + taps_ - 1 - l] : S(1);
      }
      rows_[static_cast<size_t>(taps_ * kChannels + c)] = bias_ != nullptr ? bias_[first + c] : S(0);
    }
  }
  const S* tap(int64_t l) const { return rows_.data() + l * kChannels; }
  const S* bias() const { return tap(taps_); }

 private:
  const S *weight_, *bias_;
  int64_t taps_;
  std::vector<S> rows_;
};

/// Where the inputs of one token lie, from its own backward in time.
template <class S> struct Window {
  const S *now, *carried;               // carried: the input of the token before the row
  int64_t channels, inside, available;  // taps that lie in the rows; taps in the document, >= inside

  const S* tap(int64_t l) const { return l < inside ? now - l * channels : carried - (l - inside) * channels; }
};

template <class S>
Window<S> window_at(const S* x, const S* previous, const int32_t* doc_start, int64_t i, int64_t length,
                    int64_t channels, int64_t taps) {
  const int64_t t = i % length, row = i / length;
  Window<S> w{x + i * channels, nullptr, channels, std::min(taps, t + 1), std::min(taps, t - doc_start[i] + 1)};
  if (previous != nullptr) {
    w.carried = previous + ((row + 1) * (taps - 1) - 1) * channels;
  } else {
    w.available = std::min(w.available, w.inside);
  }
  w.inside = std::min(w.inside, w.available);
  return w;
}

/// z of `width` channels from `first`, handed to f(channel of the tile, z, lanes).
template <class S, class F>
inline void convolve(const Filter<S>& filter, const Window<S>& window, int64_t first, int64_t width, F&& f) {
  if (filter.taps() == 4 && window.inside == 4) {  // the usual case, with nothing but loads and multiply-adds
    const S *x0 = window.now + first, *x1 = x0 - window.channels, *x2 = x1 - window.channels,
            *x3 = x2 - window.channels;
    vector_loop<S>(width, [&](int64_t c, auto lanes) {
      const Vec<S> near = fma(load(filter.tap(0) + c, lanes), load(x0 + c, lanes), load(filter.bias() + c, lanes));
      const Vec<S> mid = fma(load(filter.tap(1) + c, lanes), load(x1 + c, lanes), near);
      const Vec<S> far = fma(load(filter.tap(2) + c, lanes), load(x2 + c, lanes), mid);
      f(c, fma(load(filter.tap(3) + c, lanes), load(x3 + c, lanes), far), lanes);
    });
    return;
  }
  vector_loop<S>(width, [&](int64_t c, auto lanes) {
    Vec<S> z = load(filter.bias() + c, lanes);
    for (int64_t l = 0; l < window.available; ++l) {
      z = fma(load(filter.tap(l) + c, lanes), load(window.tap(l) + first + c, lanes), z);
    }
    f(c, z, lanes);
  });
}

template <class S> void forward(const ShortConvForward& a) {
  const int64_t length = a.x.size(1), channels = a.x.size(2), tokens = a.x.size(0) * length;
  const S *x = a.x.as<S>(), *previous = a.previous.as<S>();
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  S* y = a.y.as<S>();
  parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    Filter<S> filter(a.weight, a.bias);
    for (int64_t first = 0; first < channels; first += Filter<S>::kChannels) {
      const int64_t width = std::min(Filter<S>::kChannels, channels - first);
      filter.select(first, width);
      for (int64_t i = begin; i < end; ++i) {
        const Window<S> window = window_at(x, previous, doc_start, i, length, channels, filter.taps());
        S* out = y + i * channels + first;
        convolve(filter, window, first, width,
                 [&](int64_t c, Vec<S> z, auto lanes) { store(out + c, a.silu ? z * sigmoid(z) : z, lanes); });
      }
    }
  });
}

/// One block of tokens of one row and one tile of channels.
template <class S> class BackwardBlock {
 public:
  BackwardBlock(const ShortConvBackward& a, const ShortConvBackwardScratch& scratch, Filter<S>& filter)
      : a_(a),
        scratch_(scratch),
        filter_(filter),
        length_(a.x.size(1)),
        channels_(a.x.size(2)),
        doc_start_(a.doc_start.as<int32_t>()),
        d_z_(static_cast<size_t>((ShortConvBlocks::kTokens + filter.taps() - 1) * Filter<S>::kChannels)) {}

  void run(int64_t block, int64_t first, int64_t width) {
    const int64_t blocks = ShortConvBlocks::count(length_), of_row = block % blocks;
    begin_ = ShortConvBlocks::begin(of_row);
    end_ = ShortConvBlocks::end(of_row, length_);
    row_ = block / blocks * length_;
    first_ = first;
    width_ = width;
    compute_d_z();
    if (a_.d_x.defined()) { write_d_x(); }
    if (a_.d_weight.defined() || a_.d_bias.defined()) {
      sum_weights(scratch_.partial.as<S>() + block * (filter_.taps() + 1) * channels_ + first);
    }
  }

 private:
  S* d_z(int64_t t) { return d_z_.data() + (t - begin_) * Filter<S>::kChannels; }
  Window<S> window(int64_t t) const {
    return window_at<S>(a_.x.as<S>(), nullptr, doc_start_, row_ + t, length_, channels_, filter_.taps());
  }

  /// Of the block's tokens and of those that read the block's inputs.
  void compute_d_z() {
    for (int64_t t = begin_; t < std::min(length_, end_ + filter_.taps() - 1); ++t) {
      const Window<S> w = window(t);
      const S* d_y = a_.d_y.as<S>() + (row_ + t) * channels_ + first_;
      S* out = d_z(t);
      if (!a_.silu) {
        std::copy_n(d_y, width_, out);
        continue;
      }
      convolve(filter_, w, first_, width_, [&](int64_t c, Vec<S> z, auto lanes) {
        const Vec<S> s = sigmoid(z), one(S(1));
        store(out + c, load(d_y + c, lanes) * s * fma(z, one - s, one), lanes);
      });
    }
  }

  void write_d_x() {
    for (int64_t t = begin_; t < end_; ++t) {
      int64_t readers = 1;
      while (readers < filter_.taps() && t + readers < length_ && doc_start_[row_ + t + readers] <= t) { ++readers; }
      S* d_x = a_.d_x.as<S>() + (row_ + t) * channels_ + first_;
      vector_loop<S>(width_, [&](int64_t c, auto lanes) {
        Vec<S> d = a_.accumulate ? load(d_x + c, lanes) : Vec<S>(S(0));
        for (int64_t l = 0; l < readers; ++l) {
          d = fma(load(filter_.tap(l) + c, lanes), load(d_z(t + l) + c, lanes), d);
        }
        store(d_x + c, d, lanes);
      });
    }
  }

  void sum_weights(S* partial) {
    for (int64_t l = 0; l <= filter_.taps(); ++l) { std::fill_n(partial + l * channels_, width_, S(0)); }
    for (int64_t t = begin_; t < end_; ++t) {
      const Window<S> w = window(t);
      vector_loop<S>(width_, [&](int64_t c, auto lanes) {
        const Vec<S> d = load(d_z(t) + c, lanes);
        for (int64_t l = 0; l < w.available; ++l) {
          S* sum = partial + l * channels_ + c;
          store(sum, fma(d, load(w.tap(l) + first_ + c, lanes), load(sum, lanes)), lanes);
        }
        S* sum = partial + filter_.taps() * channels_ + c;
        store(sum, d + load(sum, lanes), lanes);
      });
    }
  }

  const ShortConvBackward& a_;
  const ShortConvBackwardScratch& scratch_;
  Filter<S>& filter_;
  const int64_t length_, channels_;
  const int32_t* doc_start_;
  std::vector<S> d_z_;
  int64_t row_ = 0, begin_ = 0, end_ = 0, first_ = 0, width_ = 0;
};

template <class S> void backward(const ShortConvBackward& a, const ShortConvBackwardScratch& scratch) {
  const int64_t channels = a.x.size(2), blocks = a.x.size(0) * ShortConvBlocks::count(a.x.size(1));
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    Filter<S> filter(a.weight, a.bias);
    BackwardBlock<S> block(a, scratch, filter);
    for (int64_t first = 0; first < channels; first += Filter<S>::kChannels) {
      const int64_t width = std::min(Filter<S>::kChannels, channels - first);
      filter.select(first, width);
      for (int64_t b = begin; b < end; ++b) { block.run(b, first, width); }
    }
  });
  if (!a.d_weight.defined() && !a.d_bias.defined()) { return; }
  const int64_t taps = a.weight.size(1);
  const int64_t stride = (taps + 1) * channels;
  const S* partial = scratch.partial.as<S>();
  for (int64_t l = 0; l < taps; ++l) {
    add_blocks(a.d_weight, blocks, channels, partial + l * channels, stride, taps - 1 - l, taps);
  }
  add_blocks(a.d_bias, blocks, channels, partial + taps * channels, stride);
}

template <class S> void shift(const ShortConvShift& a) {
  const int64_t kept = a.previous.size(1), channels = a.previous.size(2), length = a.x.size(1);
  const int64_t moved = std::max<int64_t>(0, kept - length), fresh = kept - moved;
  for (int64_t b = 0; b < a.x.size(0); ++b) {
    S* previous = a.previous.as<S>() + b * kept * channels;
    std::copy(previous + fresh * channels, previous + kept * channels, previous);
    const S* end = a.x.as<S>() + (b + 1) * length * channels;
    std::copy(end - fresh * channels, end, previous + moved * channels);
  }
}

}  // namespace

void run(Stream& stream, const ShortConvForward& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { forward<S>(args); });
  if (args.scale.defined()) {
    const Tensor y = args.y.view({args.y.size(0) * args.y.size(1), args.y.size(2)});
    cpu::run(stream, L2NormForward{.n = y, .scale = args.scale, .x = y, .head_dim = args.head_dim});
  }
}

void run(Stream& stream, const ShortConvBackward& args, const ShortConvBackwardScratch& scratch) {
  if (args.scale.defined()) {
    const Tensor d_y = args.d_y.view({args.d_y.size(0) * args.d_y.size(1), args.d_y.size(2)});
    cpu::run(stream, L2NormBackward{.d_x = d_y,
                                    .d_n = d_y,
                                    .n = args.n.view(d_y.shape),
                                    .scale = args.scale,
                                    .head_dim = args.head_dim,
                                    .accumulate = false});
  }
  dispatch_real(args.x.dtype, [&]<class S>(S) { backward<S>(args, scratch); });
}

void run(Stream&, const ShortConvShift& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { shift<S>(args); });
}

}  // namespace cpu
}  // namespace hebb
