#include "kernels/head_norm/head_norm.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/head_norm/scratch.h"

namespace hebb {

GatedNormBackwardScratch plan(Workspace& workspace, const GatedNormBackward& args) {
  if (!args.weight.defined()) { return {}; }
  return {.partial = workspace.tensor({GatedNormBlocks::count(args.o.size(0)), args.weight.numel()},
                                      sum_dtype(args.o.dtype), "norm partial sums")};
}
HEBB_KERNEL_PLANNED(GatedNormBackward)

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

/// Calls f(first channel, index of token and head) for every head of [N, C], in parallel.
template <class F> void each_head(const Tensor& x, int64_t head_dim, F&& f) {
  const int64_t heads = x.numel() / x.size(0) / head_dim;
  parallel_each(x.size(0) * heads, 64 * heads, [&](int64_t i) { f(i * head_dim, i); });
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

/// Where the weight of the head at channel `at` of a token lies: one for all heads, or one for each channel.
inline int64_t weight_at(const Tensor& weight, int64_t at, int64_t channels) {
  return weight.numel() == channels ? at % channels : 0;
}

/// One head of one token; d_weight (null: no norm) is this block's sum, work [2 head_dim] scratch. With r the normed
/// tensor, o or o * gate, n = r rstd and d_n = d_y weight (* gate): d_r = rstd (d_n - n mean(n d_n)).
template <class S> void backward_head(const GatedNormBackward& a, int64_t at, S* d_weight, S* work) {
  const int64_t dim = a.head_dim, channels = a.o.numel() / a.o.size(0);
  const S *o = a.o.as<S>() + at, *z = a.z.defined() ? a.z.as<S>() + at : nullptr, *d_y = a.d_y.as<S>() + at;
  S *d_o = a.d_o.defined() ? a.d_o.as<S>() + at : nullptr, *d_z = a.d_z.defined() ? a.d_z.as<S>() + at : nullptr;
  const S* weight = a.weight.defined() ? a.weight.as<S>() + weight_at(a.weight, at, channels) : nullptr;
  const bool gate_first = a.gate_first && z != nullptr;
  const S* normed = o;
  if (gate_first) {
    normed = work + dim;
    vector_loop<S>(dim, [&](int64_t c, auto lanes) {
      store(work + dim + c, load(o + c, lanes) * gate_value(a.gate, load(z + c, lanes)).value, lanes);
    });
  }
  const auto write_gate = [&](int64_t c, Vec<S> dz, auto lanes) {
    if (d_z != nullptr) { put(d_z + c, dz, lanes, a.accumulate_z); }
  };
  const Vec<S> one(S(1)), rstd(weight != nullptr ? inverse_rms(dim, normed, a.eps) : S(1));
  Vec<S> along(S(0));  // sum of d_n n
  vector_loop<S>(dim, [&](int64_t c, auto lanes) {
    const Vec<S> n = load(normed + c, lanes) * rstd, w = weight != nullptr ? load(weight + c, lanes) : one;
    Vec<S> d = load(d_y + c, lanes);
    if (z != nullptr && !gate_first) {
      const GateValue<S> gate = gate_value(a.gate, load(z + c, lanes));
      write_gate(c, d * n * w * gate.slope, lanes);
      d *= gate.value;
    }
    if (weight != nullptr) {
      store(d_weight + c, fma(d, n, load(d_weight + c, lanes)), lanes);
      d *= w;
      along = fma(d, n, along);
    }
    store(work + c, d, lanes);
  });
  if (d_o == nullptr && !gate_first) { return; }
  const Vec<S> mean(weight != nullptr ? sum(along) / static_cast<S>(dim) : S(0));
  vector_loop<S>(dim, [&](int64_t c, auto lanes) {
    Vec<S> d = load(work + c, lanes);
    d = weight != nullptr ? rstd * (d - load(normed + c, lanes) * rstd * mean) : d;
    if (gate_first) {
      const GateValue<S> gate = gate_value(a.gate, load(z + c, lanes));
      write_gate(c, d * load(o + c, lanes) * gate.slope, lanes);
      d *= gate.value;
    }
    if (d_o != nullptr) { put(d_o + c, d, lanes, a.accumulate_o); }
  });
}

}  // namespace

void run(Stream&, const L2NormForward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t dim = a.head_dim;
    const S* x = a.x.as<S>();
    S *n = a.n.as<S>(), *scale = a.scale.as<S>();
    each_head(a.x, dim, [&](int64_t at, int64_t head) {
      const S s = S(1) / std::sqrt(sum_squares(dim, x + at) + S(1e-6));
      vector_loop<S>(dim,
                     [&](int64_t c, auto lanes) { store(n + at + c, load(x + at + c, lanes) * Vec<S>(s), lanes); });
      scale[head] = s;
    });
  });
}

void run(Stream&, const L2NormBackward& a) {
  dispatch_real(a.n.dtype, [&]<class S>(S) {
    const int64_t dim = a.head_dim;
    const S *n = a.n.as<S>(), *d_n = a.d_n.as<S>(), *scale = a.scale.as<S>();
    S* d_x = a.d_x.as<S>();
    each_head(a.n, dim, [&](int64_t at, int64_t head) {
      const Vec<S> s(scale[head]), along(vector_sum<S>(dim, [&](int64_t c, auto lanes) {
        return load(n + at + c, lanes) * load(d_n + at + c, lanes);
      }));
      vector_loop<S>(dim, [&](int64_t c, auto lanes) {
        const Vec<S> d = s * (load(d_n + at + c, lanes) - load(n + at + c, lanes) * along);
        put(d_x + at + c, d, lanes, a.accumulate);
      });
    });
  });
}

void run(Stream&, const GatedNormForward& a) {
  dispatch_real(a.o.dtype, [&]<class S>(S) {
    const int64_t channels = a.o.numel() / a.o.size(0), dim = a.head_dim;
    const S *o = a.o.as<S>(), *z = a.z.as<S>();
    S* y = a.y.as<S>();
    each_head(a.o, dim, [&](int64_t at, int64_t) {
      const S* weight = a.weight.defined() ? a.weight.as<S>() + weight_at(a.weight, at, channels) : nullptr;
      const auto gated = [&](int64_t c, Vec<S> v, auto lanes) {
        return z != nullptr ? v * gate_value(a.gate, load(z + at + c, lanes)).value : v;
      };
      const S* source = o + at;
      if (a.gate_first) {
        vector_loop<S>(
            dim, [&](int64_t c, auto lanes) { store(y + at + c, gated(c, load(o + at + c, lanes), lanes), lanes); });
        source = y + at;
      }
      const Vec<S> rstd(weight != nullptr ? inverse_rms(dim, source, a.eps) : S(1));
      vector_loop<S>(dim, [&](int64_t c, auto lanes) {
        Vec<S> v = load(source + c, lanes);
        v = weight != nullptr ? v * rstd * load(weight + c, lanes) : v;
        store(y + at + c, a.gate_first ? v : gated(c, v, lanes), lanes);
      });
    });
  });
}

void run(Stream&, const GatedNormBackward& a, const GatedNormBackwardScratch& scratch) {
  dispatch_real(a.o.dtype, [&]<class S>(S) {
    const int64_t tokens = a.o.size(0), channels = a.o.numel() / tokens, blocks = GatedNormBlocks::count(tokens);
    const int64_t weights = a.weight.defined() ? a.weight.numel() : 0;
    S* partial = scratch.partial.as<S>();
    parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      std::vector<S> work(static_cast<size_t>(2 * a.head_dim));
      for (int64_t block = first; block < last; ++block) {
        S* d_weight = partial != nullptr ? partial + block * weights : nullptr;
        if (d_weight != nullptr) { std::fill_n(d_weight, weights, S(0)); }
        const int64_t end = GatedNormBlocks::end(block, tokens) * channels;
        for (int64_t at = GatedNormBlocks::begin(block) * channels; at < end; at += a.head_dim) {
          backward_head(a, at, d_weight != nullptr ? d_weight + weight_at(a.weight, at, channels) : nullptr,
                        work.data());
        }
      }
    });
    add_blocks(a.d_weight, blocks, weights, partial, weights);
  });
}

}  // namespace cpu
}  // namespace hebb
