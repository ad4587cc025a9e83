#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/lact/heads_scratch.h"

namespace hebb {

LactKeysBackwardScratch plan(Workspace& workspace, const LactKeysBackward& args) {
  return {.partial = workspace.tensor({lact_keys_blocks(args.x.size(0)), 2, args.x.size(1) * args.x.size(2)},
                                      sum_dtype(args.x.dtype), "fast key sums")};
}
HEBB_KERNEL_PLANNED(LactKeysBackward)

namespace cpu {
namespace {

constexpr int64_t kBlock = kLactKeysBlock;
constexpr double kEps = 1e-5;  // beside the length of a key

/// One column of a [channels, 2] parameter.
template <class S> std::vector<S> column_of(const Tensor& t, int64_t column) {
  std::vector<S> out(static_cast<size_t>(t.size(0)));
  for (size_t i = 0; i < out.size(); ++i) { out[i] = t.as<S>()[2 * i + static_cast<size_t>(column)]; }
  return out;
}

/// u of one head, and |u|.
template <class S> S activate(int64_t n, const S* x, const S* scale, const S* offset, S* u) {
  Vec<S> total(S(0));
  vector_loop<S>(n, [&](int64_t i, auto lanes) {
    const Vec<S> z = fma(load(x + i, lanes), load(scale + i, lanes), load(offset + i, lanes));
    const Vec<S> value = z * sigmoid(z);
    store(u + i, value, lanes);
    total = fma(value, value, total);
  });
  return std::sqrt(sum(total));
}

/// One head of one token: adds to the block's sums of d_scale and d_offset.
template <class S> struct KeyAdjoint {
  int64_t n;
  const S *x, *scale, *offset, *d_y;
  S *u, *d_x, *d_scale, *d_offset;  // d_x may be null
  bool accumulate;

  void run() const {
    const S length = activate(n, x, scale, offset, u), inverse = S(1) / (length + static_cast<S>(kEps));

    // d_u = (d_y - u (u . d_y) / (|u| (|u| + eps))) / (|u| + eps)
    const Vec<S> back(length > S(0) ? -dot_row(n, u, d_y) * inverse / length : S(0)), one(S(1));
    vector_loop<S>(n, [&](int64_t i, auto lanes) {
      const Vec<S> in = load(x + i, lanes), factor = load(scale + i, lanes);
      const Vec<S> z = fma(in, factor, load(offset + i, lanes)), s = sigmoid(z);
      const Vec<S> d_u = fma(load(u + i, lanes), back, load(d_y + i, lanes)) * Vec<S>(inverse);
      const Vec<S> d_z = d_u * s * fma(z, one - s, one);
      store(d_scale + i, fma(d_z, in, load(d_scale + i, lanes)), lanes);
      store(d_offset + i, load(d_offset + i, lanes) + d_z, lanes);
      if (d_x != nullptr) { put(d_x + i, d_z * factor, lanes, accumulate); }
    });
  }
};

}  // namespace

void run(Stream&, const LactKeysForward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t tokens = a.x.size(0), heads = a.x.size(1), d = a.x.size(2);
    const std::vector<S> scale = column_of<S>(a.scale, a.column), offset = column_of<S>(a.offset, a.column);
    parallel_each(tokens * heads, kBlock, [&](int64_t r) {
      const int64_t channel = r % heads * d;
      S* y = a.y.as<S>() + r * d;
      const S length = activate(d, a.x.as<S>() + r * d, scale.data() + channel, offset.data() + channel, y);
      const Vec<S> inverse(S(1) / (length + static_cast<S>(kEps)));
      vector_loop<S>(d, [&](int64_t i, auto lanes) { store(y + i, load(y + i, lanes) * inverse, lanes); });
    });
  });
}

void run(Stream&, const LactKeysBackward& a, const LactKeysBackwardScratch& scratch) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    S* partial = scratch.partial.as<S>();
    const int64_t tokens = a.x.size(0), heads = a.x.size(1), d = a.x.size(2), channels = heads * d;
    const std::vector<S> scale = column_of<S>(a.scale, a.column), offset = column_of<S>(a.offset, a.column);
    parallel_for(lact_keys_blocks(tokens), 1, [&](int64_t first, int64_t last) {
      std::vector<S> u(static_cast<size_t>(d));
      for (int64_t block = first; block < last; ++block) {
        S *d_scale = partial + block * 2 * channels, *d_offset = d_scale + channels;
        std::fill_n(d_scale, 2 * channels, S(0));
        for (int64_t r = block * kBlock * heads; r < std::min(tokens, (block + 1) * kBlock) * heads; ++r) {
          const int64_t channel = r % heads * d;
          KeyAdjoint<S>{d,
                        a.x.as<S>() + r * d,
                        scale.data() + channel,
                        offset.data() + channel,
                        a.d_y.as<S>() + r * d,
                        u.data(),
                        a.d_x.defined() ? a.d_x.as<S>() + r * d : nullptr,
                        d_scale + channel,
                        d_offset + channel,
                        a.accumulate}
              .run();
        }
      }
    });
    const int64_t blocks = lact_keys_blocks(tokens);
    add_blocks(a.d_scale, blocks, channels, partial, 2 * channels, a.column, 2);
    add_blocks(a.d_offset, blocks, channels, partial + channels, 2 * channels, a.column, 2);
  });
}

void run(Stream&, const LactMixForward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t rows = a.x.size(0) * a.x.size(1), d = a.x.size(2);
    parallel_each(rows, kBlock, [&](int64_t r) {
      const Vec<S> gate(a.gate.as<S>()[r]), factor = gate * sigmoid(gate);
      const S *x = a.x.as<S>() + r * d, *base = a.base.as<S>() + r * d;
      S* y = a.y.as<S>() + r * d;
      vector_loop<S>(d, [&](int64_t i, auto lanes) {
        store(y + i, fma(factor, load(x + i, lanes), load(base + i, lanes)), lanes);
      });
    });
  });
}

void run(Stream&, const LactMixBackward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t rows = a.x.size(0) * a.x.size(1), d = a.x.size(2);
    S *all_d_x = a.d_x.as<S>(), *d_gate = a.d_gate.as<S>();
    parallel_each(rows, kBlock, [&](int64_t r) {
      const Vec<S> gate(a.gate.as<S>()[r]), s = sigmoid(gate), factor = gate * s, one(S(1));
      const S *x = a.x.as<S>() + r * d, *d_y = a.d_y.as<S>() + r * d;
      S* d_x = all_d_x != nullptr ? all_d_x + r * d : nullptr;
      Vec<S> total(S(0));
      vector_loop<S>(d, [&](int64_t i, auto lanes) {
        const Vec<S> g = load(d_y + i, lanes);
        total = fma(g, load(x + i, lanes), total);
        if (d_x != nullptr) {
          store(d_x + i, a.accumulate_x ? fma(g, factor, load(d_x + i, lanes)) : g * factor, lanes);
        }
      });
      if (d_gate != nullptr) { put(d_gate[r], sum(total) * (s * fma(gate, one - s, one))[0], a.accumulate_gate); }
    });
  });
}

void run(Stream&, const HalfIdentity& a) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    const int64_t rows = a.y.size(1), columns = a.y.size(2);
    std::fill_n(a.y.as<S>(), a.y.numel(), S(0));
    for (int64_t head = 0; head < a.y.size(0); ++head) {
      for (int64_t i = 0; i < std::min(rows, columns); ++i) { a.y.as<S>()[(head * rows + i) * columns + i] = S(0.5); }
    }
  });
}

}  // namespace cpu
}  // namespace hebb
