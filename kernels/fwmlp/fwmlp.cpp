#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "kernels/common/formulas.h"
#include "kernels/fwmlp/scratch.h"
#include "kernels/gemm/gemm_cpu.h"

namespace hebb {

FwmlpReadScratch plan(Workspace& workspace, const FwmlpRead& args) {
  return {.out = workspace.tensor({args.chunk.tokens(), args.sizes.value_dim}, sum_dtype(args.vh.dtype),
                                  "readings of a chunk")};
}
HEBB_KERNEL_PLANNED(FwmlpRead)

FwmlpStepScratch plan(Workspace& workspace, const FwmlpStep& args) {
  const DType dtype = sum_dtype(args.vh.dtype);
  const int64_t rows = args.chunk.tokens(), hidden = args.sizes.hidden;
  return {.residual = workspace.tensor({rows, args.sizes.value_dim}, dtype, "prediction errors"),
          .d_act = workspace.tensor({rows, 2 * hidden}, dtype, "fast activation gradients"),
          .d_hid = workspace.tensor({rows, hidden}, dtype, "fast activation gradients")};
}
HEBB_KERNEL_PLANNED(FwmlpStep)

FwmlpBackwardScratch plan(Workspace& workspace, const FwmlpBackward& args) {
  const FwmlpSizes& s = args.sizes;
  const DType dtype = sum_dtype(args.vh.dtype);
  const int64_t rows = args.chunk.tokens();
  FwmlpBackwardScratch scratch;
  scratch.y = workspace.tensor({rows, s.value_dim}, dtype, "prediction gradients");
  scratch.d_act = workspace.tensor({rows, 2 * s.hidden}, dtype, "fast activation gradients");
  scratch.d_hid = workspace.tensor({rows, s.hidden}, dtype, "fast activation gradients");
  scratch.d_local = workspace.tensor({rows, s.key_dim}, dtype, "query gradients");
  if (args.d_next.defined()) {
    scratch.residual = workspace.tensor({rows, s.value_dim}, dtype, "prediction errors");
    scratch.tangent = workspace.tensor({s.total()}, dtype, "fast weight tangents");
    scratch.t_act = workspace.tensor({rows, 2 * s.hidden}, dtype, "fast tangents");
    scratch.d_tact = workspace.tensor({rows, 2 * s.hidden}, dtype, "fast tangents");
    scratch.t_hid = workspace.tensor({rows, s.hidden}, dtype, "fast tangents");
    scratch.d_thid = workspace.tensor({rows, s.hidden}, dtype, "fast tangents");
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(FwmlpBackward)

namespace cpu {
namespace {

constexpr int64_t kGrain = 8;  // rows of a chunk

struct ProductOptions {
  bool transposed = false, accumulate = false;
};

/// c [m, n] (+)= a [m, k] b, b [k, n] or, transposed, [n, k].
template <class S>
void times(int64_t m, int64_t n, int64_t k, const S* a, const S* b, S* c, const ProductOptions& options = {}) {
  gemm_parallel<S>(false, options.transposed, m, n, k, S(1), a, k, b, options.transposed ? k : n, options.accumulate, c,
                   n);
}

/// c [m, n] (+)= aT b over `rows` rows: the gradient of a weight.
template <class S> void outer(int64_t m, int64_t n, int64_t rows, const S* a, const S* b, bool accumulate, S* c) {
  gemm_parallel<S>(true, false, m, n, rows, S(1), a, m, b, n, accumulate, c, n);
}

/// to [n] (+)= the sum of the rows of a [rows, n].
template <class S> void sum_rows(int64_t rows, int64_t n, const S* a, bool accumulate, S* to) {
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    if (!accumulate) { std::fill(to + begin, to + end, S(0)); }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = begin; i < end; ++i) { to[i] += a[r * n + i]; }
    }
  });
}

template <class S> void add_bias(int64_t n, const S* bias, S* row) {
  for (int64_t i = 0; i < n; ++i) { row[i] += bias[i]; }
}

/// The pieces of one flat tensor of weights.
template <class S> struct Weights {
  Weights(const Tensor& flat, const FwmlpSizes& s)
      : in(flat.as<S>()), b_in(in + s.b_up()), down(in + s.w_down()), b_down(in + s.b_down()) {}
  S *in, *b_in, *down, *b_down;
};

/// Derivative of the loss with respect to vh: residual [R, dv].
template <class S>
void residuals(const FwmlpPairs& pairs, const FwmlpSizes& s, const FastChunk& chunk, const Tensor& vh, S* residual) {
  const int64_t dv = s.value_dim;
  parallel_each(chunk.tokens(), kGrain, [&](int64_t r) {
    const int64_t t = chunk.token(r), target = pairs.targets.as<int32_t>()[t], first = pairs.mean ? t : target;
    S* to = residual + r * dv;
    std::fill(to, to + dv, S(0));
    if (target < 0) { return; }
    for (int64_t i = first; i <= target; ++i) {
      const S* v = pairs.v.as<S>() + i * dv;
      for (int64_t c = 0; c < dv; ++c) { to[c] += v[c]; }
    }
    const S share = S(1) / S(target - first + 1), scale = S(2) / (S(pairs.count) * S(dv));
    const S* prediction = vh.as<S>() + t * dv;
    for (int64_t c = 0; c < dv; ++c) { to[c] = scale * (prediction[c] - share * to[c]); }
  });
}

template <class S> struct FwmlpBackwardTask {
  const FwmlpBackward& a;
  const FwmlpBackwardScratch& scratch;
  const FwmlpSizes& s = a.sizes;
  int64_t rows = a.chunk.tokens(), h = s.hidden, dv = s.value_dim;
  Weights<S> w{a.weights, s}, x{scratch.tangent, s};
  bool second = a.d_next.defined();
  const S *q = a.kept.q.as<S>(), *act = a.kept.act.as<S>(), *hid = a.kept.hid.as<S>();
  S *t_act = scratch.t_act.as<S>(), *d_act = scratch.d_act.as<S>(), *d_tact = scratch.d_tact.as<S>(),
    *t_hid = scratch.t_hid.as<S>(), *d_hid = scratch.d_hid.as<S>(), *d_thid = scratch.d_thid.as<S>(),
    *residual = scratch.residual.as<S>(), *y = scratch.y.as<S>(), *d_local = scratch.d_local.as<S>();

  /// X = -rate d_next where the step was not clipped.
  void directions() const {
    const S clip = a.clip > 0 ? static_cast<S>(a.clip) : S(INFINITY);
    parallel_each(s.total(), 4096, [&](int64_t i) {
      const bool moved = a.clip <= 0 || std::abs(a.gradient.as<S>()[i]) < clip;
      x.in[i] = moved ? static_cast<S>(-a.rate) * a.d_next.as<S>()[i] : S(0);
    });
  }

  /// Derivatives along X: t_act, t_hid, and y = that of vh.
  void tangents() const {
    times(rows, 2 * h, s.key_dim, q, x.in, t_act, {.transposed = true});
    parallel_each(rows, kGrain, [&](int64_t r) {
      const S* row = act + r * 2 * h;
      S* t = t_act + r * 2 * h;
      add_bias(2 * h, x.b_in, t);
      for (int64_t i = 0; i < h; ++i) {
        const Silu<S> silu(row[h + i]);
        t_hid[r * h + i] = t[i] * silu.value + row[i] * silu.first * t[h + i];
      }
    });
    times(rows, dv, h, t_hid, w.down, y, {.transposed = true});
    times(rows, dv, h, hid, x.down, y, {.transposed = true, .accumulate = true});
    parallel_each(rows, kGrain, [&](int64_t r) { add_bias(dv, x.b_down, y + r * dv); });
  }

  /// y becomes the gradient of vh; targets take theirs.
  void to_outputs() const {
    const S scale = S(2) / (S(std::max<int64_t>(a.pairs.count, 1)) * S(dv));
    parallel_each(rows, kGrain, [&](int64_t r) {
      const int64_t t = a.chunk.token(r);
      const bool pair = second && a.pairs.targets.as<int32_t>()[t] >= 0;
      for (int64_t c = 0; c < dv; ++c) {
        S& d = y[r * dv + c];
        d = pair ? scale * d : S(0);
      }
    });
    // In the order of the tokens, since means share targets.
    parallel_for(second ? dv : 0, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t t = a.chunk.token(r), target = a.pairs.targets.as<int32_t>()[t],
                      first = a.pairs.mean ? t : target;
        for (int64_t i = target < 0 ? 1 : first; i <= target; ++i) {
          for (int64_t c = begin; c < end; ++c) { a.d_v.as<S>()[i * dv + c] -= y[r * dv + c] / S(target - first + 1); }
        }
      }
    });
    parallel_each(rows, kGrain, [&](int64_t r) { add_bias(dv, a.d_vh.as<S>() + a.chunk.token(r) * dv, y + r * dv); });
  }

  void to_activations() const {
    times(rows, h, dv, y, w.down, d_hid);
    if (second) {
      times(rows, h, dv, residual, x.down, d_hid, {.accumulate = true});
      times(rows, h, dv, residual, w.down, d_thid);
    }
    parallel_each(rows, kGrain, [&](int64_t r) {
      const S *row = act + r * 2 * h, *t = t_act + r * 2 * h;
      S *d = d_act + r * 2 * h, *d_t = d_tact + r * 2 * h;
      for (int64_t i = 0; i < h; ++i) {
        const Silu<S> silu(row[h + i]);
        d[i] = d_hid[r * h + i] * silu.value;
        d[h + i] = d_hid[r * h + i] * row[i] * silu.first;
        if (second) {
          const S along = d_thid[r * h + i];
          d[i] += along * silu.first * t[h + i];
          d[h + i] += along * (t[i] * silu.first + row[i] * silu.second * t[h + i]);
          d_t[i] = along * silu.value;
          d_t[h + i] = along * row[i] * silu.first;
        }
      }
    });
  }

  void to_queries() const {
    times(rows, s.key_dim, 2 * h, d_act, w.in, d_local);
    if (second) { times(rows, s.key_dim, 2 * h, d_tact, x.in, d_local, {.accumulate = true}); }
    parallel_each(rows, kGrain, [&](int64_t r) {
      S* to = a.d_q.as<S>() + a.chunk.token(r) * s.key_dim;
      for (int64_t i = 0; i < s.key_dim; ++i) { to[i] = (a.accumulate ? to[i] : S(0)) + d_local[r * s.key_dim + i]; }
    });
  }

  void to_weights() const {
    const Weights<S> d(a.d_weights, s);
    if (second) {
      std::copy_n(a.d_next.as<S>(), s.total(), d.in);
      outer(dv, h, rows, residual, t_hid, true, d.down);
    } else {
      std::fill_n(d.in, s.total(), S(0));
    }
    outer(dv, h, rows, y, hid, true, d.down);
    sum_rows(rows, dv, y, true, d.b_down);
    outer(2 * h, s.key_dim, rows, d_act, q, true, d.in);
    sum_rows(rows, 2 * h, d_act, true, d.b_in);
  }
};

}  // namespace

void run(Stream&, const FwmlpRead& a, const FwmlpReadScratch& scratch) {
  dispatch_real(a.vh.dtype, [&]<class S>(S) {
    const FwmlpSizes& s = a.sizes;
    const int64_t rows = a.chunk.tokens(), h = s.hidden;
    const Weights<S> w(a.weights, s);
    S *q = a.kept.q.as<S>(), *act = a.kept.act.as<S>(), *hid = a.kept.hid.as<S>();
    parallel_each(rows, kGrain, [&](int64_t r) {
      std::copy_n(a.tokens_q.as<S>() + a.chunk.token(r) * s.key_dim, s.key_dim, q + r * s.key_dim);
    });
    times(rows, 2 * h, s.key_dim, q, w.in, act, {.transposed = true});
    parallel_each(rows, kGrain, [&](int64_t r) {
      S* row = act + r * 2 * h;
      add_bias(2 * h, w.b_in, row);
      for (int64_t i = 0; i < h; ++i) { hid[r * h + i] = row[i] * row[h + i] * sigmoid(row[h + i]); }
    });
    const S* bias = w.b_down;
    S* out = scratch.out.as<S>();
    times(rows, s.value_dim, h, hid, w.down, out, {.transposed = true});
    parallel_each(rows, kGrain, [&](int64_t r) {
      S* vh = a.vh.as<S>() + a.chunk.token(r) * s.value_dim;
      for (int64_t i = 0; i < s.value_dim; ++i) { vh[i] = out[r * s.value_dim + i] + bias[i]; }
    });
  });
}

void run(Stream&, const FwmlpStep& a, const FwmlpStepScratch& scratch) {
  dispatch_real(a.vh.dtype, [&]<class S>(S) {
    const FwmlpSizes& s = a.sizes;
    const int64_t rows = a.chunk.tokens(), h = s.hidden, dv = s.value_dim;
    const Weights<S> w(a.weights, s), g(a.gradient, s);
    S *residual = scratch.residual.as<S>(), *d_act = scratch.d_act.as<S>(), *d_hid = scratch.d_hid.as<S>();
    const S *act = a.kept.act.as<S>(), *hid = a.kept.hid.as<S>();
    residuals(a.pairs, s, a.chunk, a.vh, residual);
    outer(dv, h, rows, residual, hid, false, g.down);
    sum_rows(rows, dv, residual, false, g.b_down);
    times(rows, h, dv, residual, w.down, d_hid);
    parallel_each(rows, kGrain, [&](int64_t r) {
      for (int64_t i = 0; i < h; ++i) {
        const Silu<S> silu(act[r * 2 * h + h + i]);
        d_act[r * 2 * h + i] = d_hid[r * h + i] * silu.value;
        d_act[r * 2 * h + h + i] = d_hid[r * h + i] * act[r * 2 * h + i] * silu.first;
      }
    });
    outer(2 * h, s.key_dim, rows, d_act, a.kept.q.as<S>(), false, g.in);
    sum_rows(rows, 2 * h, d_act, false, g.b_in);
    const S clip = a.clip > 0 ? static_cast<S>(a.clip) : S(INFINITY), rate = static_cast<S>(a.rate);
    parallel_each(s.total(), 4096,
                  [&](int64_t i) { a.next.as<S>()[i] = w.in[i] - rate * std::clamp(g.in[i], -clip, clip); });
  });
}

void run(Stream&, const FwmlpBackward& a, const FwmlpBackwardScratch& scratch) {
  dispatch_real(a.vh.dtype, [&]<class S>(S) {
    const FwmlpBackwardTask<S> b{a, scratch};
    if (b.second) {
      residuals(a.pairs, b.s, a.chunk, a.vh, b.residual);
      b.directions();
      b.tangents();
    }
    b.to_outputs();
    b.to_activations();
    b.to_queries();
    if (a.d_weights.defined()) { b.to_weights(); }
  });
}

}  // namespace cpu
}  // namespace hebb
