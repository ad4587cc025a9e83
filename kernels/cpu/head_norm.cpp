#include "kernels/head_norm.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "kernels/cpu/simd.h"

namespace hebb {
namespace {

constexpr int64_t kBlock = 64;  // tokens of one partial sum

}  // namespace

int64_t gated_norm_blocks(int64_t tokens) { return (tokens + kBlock - 1) / kBlock; }

namespace cpu {
namespace {

/// Sum over i < n of f(i, lanes), in a fixed order; f must give 0 behind the last element.
template <class S, class F> inline S vector_sum(int64_t n, F&& f) {
  Vec<S> total(S(0));
  vector_loop<S>(n, [&](int64_t i, auto lanes) { total += f(i, lanes); });
  return sum(total);
}

template <class S> inline S sum_squares(int64_t n, const S* x) {
  return vector_sum<S>(n, [&](int64_t i, auto lanes) {
    const Vec<S> v = load(x + i, lanes);
    return v * v;
  });
}

/// Calls f(first channel, index of token and head) for every head of the tokens [begin, end) of [N, C].
template <class F> void for_heads(int64_t begin, int64_t end, int64_t channels, int64_t head_dim, F&& f) {
  const int64_t heads = channels / head_dim;
  for (int64_t i = begin * heads; i < end * heads; ++i) {
    f(i * head_dim, i);
  }
}

template <class S> void forward(const L2NormForward& a) {
  const int64_t tokens = a.x.size(0), channels = a.x.numel() / tokens, dim = a.head_dim;
  const S* x = a.x.as<S>();
  S *n = a.n.as<S>(), *scale = a.scale.as<S>();
  parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    for_heads(begin, end, channels, dim, [&](int64_t at, int64_t head) {
      const S s = S(1) / std::sqrt(sum_squares(dim, x + at) + S(1e-6));
      vector_loop<S>(dim,
                     [&](int64_t c, auto lanes) { store(n + at + c, load(x + at + c, lanes) * Vec<S>(s), lanes); });
      scale[head] = s;
    });
  });
}

template <class S> void backward(const L2NormBackward& a) {
  const int64_t tokens = a.n.size(0), channels = a.n.numel() / tokens, dim = a.head_dim;
  const S *n = a.n.as<S>(), *d_n = a.d_n.as<S>(), *scale = a.scale.as<S>();
  S* d_x = a.d_x.as<S>();
  parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    for_heads(begin, end, channels, dim, [&](int64_t at, int64_t head) {
      const Vec<S> s(scale[head]), along(vector_sum<S>(dim, [&](int64_t c, auto lanes) {
        return load(n + at + c, lanes) * load(d_n + at + c, lanes);
      }));
      vector_loop<S>(dim, [&](int64_t c, auto lanes) {
        const Vec<S> d = s * (load(d_n + at + c, lanes) - load(n + at + c, lanes) * along);
        store(d_x + at + c, a.accumulate ? load(d_x + at + c, lanes) + d : d, lanes);
      });
    });
  });
}

/// The gate's value and derivative at z.
template <class S> struct GateValue { Vec<S> value, slope; };
template <class S> inline GateValue<S> gate_value(HeadGate gate, Vec<S> z) {
  const Vec<S> one(S(1)), s = sigmoid(z);
  return gate == HeadGate::silu ? GateValue<S>{z * s, s * fma(z, one - s, one)} : GateValue<S>{s, s * (one - s)};
}

template <class S> inline S inverse_rms(int64_t dim, const S* o, double eps) {
  return S(1) / std::sqrt(sum_squares(dim, o) / static_cast<S>(dim) + static_cast<S>(eps));
}

template <class S> void forward(const GatedNormForward& a) {
  const int64_t tokens = a.o.size(0), channels = a.o.numel() / tokens, dim = a.head_dim;
  const S *o = a.o.as<S>(), *z = a.z.as<S>(), *weight = a.weight.as<S>();
  S* y = a.y.as<S>();
  parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    for_heads(begin, end, channels, dim, [&](int64_t at, int64_t) {
      const Vec<S> rstd(weight != nullptr ? inverse_rms(dim, o + at, a.eps) : S(1));
      vector_loop<S>(dim, [&](int64_t c, auto lanes) {
        Vec<S> v = load(o + at + c, lanes);
        v = weight != nullptr ? v * rstd * load(weight + c, lanes) : v;
        v = z != nullptr ? v * gate_value(a.gate, load(z + at + c, lanes)).value : v;
        store(y + at + c, v, lanes);
      });
    });
  });
}

/// One head of one token; d_weight (null: no norm) is this block's sum, work [head_dim] scratch.
template <class S> void backward_head(const GatedNormBackward& a, int64_t at, S* d_weight, S* work) {
  const int64_t dim = a.head_dim;
  const S *o = a.o.as<S>() + at, *z = a.z.defined() ? a.z.as<S>() + at : nullptr, *d_y = a.d_y.as<S>() + at;
  S *d_o = a.d_o.defined() ? a.d_o.as<S>() + at : nullptr, *d_z = a.d_z.defined() ? a.d_z.as<S>() + at : nullptr;
  const S* weight = a.weight.as<S>();
  const Vec<S> one(S(1)), rstd(weight != nullptr ? inverse_rms(dim, o, a.eps) : S(1));
  Vec<S> along(S(0));  // sum of d_n n, n = o rstd
  vector_loop<S>(dim, [&](int64_t c, auto lanes) {
    const Vec<S> n = load(o + c, lanes) * rstd, w = weight != nullptr ? load(weight + c, lanes) : one;
    Vec<S> d = load(d_y + c, lanes);
    if (z != nullptr) {
      const GateValue<S> gate = gate_value(a.gate, load(z + c, lanes));
      const Vec<S> dz = d * n * w * gate.slope;
      d *= gate.value;
      if (d_z != nullptr) {
        store(d_z + c, a.accumulate_z ? load(d_z + c, lanes) + dz : dz, lanes);
      }
    }
    if (weight != nullptr) {
      store(d_weight + c, fma(d, n, load(d_weight + c, lanes)), lanes);
      d *= w;
      along = fma(d, n, along);
    }
    store(work + c, d, lanes);
  });
  if (d_o == nullptr) {
    return;
  }
  const Vec<S> mean(weight != nullptr ? sum(along) / static_cast<S>(dim) : S(0));
  vector_loop<S>(dim, [&](int64_t c, auto lanes) {
    Vec<S> d = load(work + c, lanes);
    d = weight != nullptr ? rstd * (d - load(o + c, lanes) * rstd * mean) : d;
    store(d_o + c, a.accumulate_o ? load(d_o + c, lanes) + d : d, lanes);
  });
}

template <class S> void backward(const GatedNormBackward& a) {
  const int64_t tokens = a.o.size(0), channels = a.o.numel() / tokens, blocks = gated_norm_blocks(tokens);
  S* partial = a.partial.as<S>();
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<S> work(static_cast<size_t>(a.head_dim));
    for (int64_t block = begin; block < end; ++block) {
      S* d_weight = partial != nullptr ? partial + block * a.head_dim : nullptr;
      if (d_weight != nullptr) {
        std::fill_n(d_weight, a.head_dim, S(0));
      }
      for_heads(block * kBlock, std::min(tokens, (block + 1) * kBlock), channels, a.head_dim,
                [&](int64_t at, int64_t) { backward_head(a, at, d_weight, work.data()); });
    }
  });
  if (a.d_weight.defined()) {
    S* total = a.d_weight.as<S>();
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t c = 0; c < a.head_dim; ++c) {
        total[c] += partial[block * a.head_dim + c];
      }
    }
  }
}

}  // namespace

void run(Stream&, const L2NormForward& args) {
  dispatch_real(args.x.dtype, [&](auto zero) { forward<decltype(zero)>(args); });
}

void run(Stream&, const L2NormBackward& args) {
  dispatch_real(args.n.dtype, [&](auto zero) { backward<decltype(zero)>(args); });
}

void run(Stream&, const GatedNormForward& args) {
  dispatch_real(args.o.dtype, [&](auto zero) { forward<decltype(zero)>(args); });
}

void run(Stream&, const GatedNormBackward& args) {
  dispatch_real(args.o.dtype, [&](auto zero) { backward<decltype(zero)>(args); });
}

}  // namespace cpu
}  // namespace hebb
