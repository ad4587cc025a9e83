#pragma once
#include "kernels/common/formulas.h"
#include "kernels/gated_delta/chunk.h"
#include "kernels/lact/lact.h"
#include "kernels/lact/newton_schulz.h"

/// What the forward and backward passes of lact's fast weights share.
namespace hebb::cpu::lact {

inline constexpr int64_t kTile = 128;     // tokens that go through the fast weights together
inline constexpr double kNormEps = 1e-5;  // beside the length of a row

struct LactSizes {
  int64_t batch, length, heads, dim, fast;  // D, h

  LactSizes(const Tensor& q, const Tensor& w0)
      : batch(q.size(0)), length(q.size(1)), heads(q.size(2)), dim(q.size(3)), fast(w0.size(1)) {}
  /// Sizes of one head alone, for counting scratch.
  LactSizes(int64_t d, int64_t h) : batch(1), length(1), heads(1), dim(d), fast(h) {}

  int64_t matrix() const { return fast * dim; }
  int64_t all() const { return 3 * matrix(); }
  int64_t rows(int m) const { return m == 1 ? dim : fast; }
  int64_t columns(int m) const { return m == 1 ? fast : dim; }
  int64_t tokens() const { return heads * dim; }  // stride of a token's channels
};

/// W0, W1, W2 wherever they lie.
template <class S> struct Weights {
  const S* w[3];
  static Weights together(const S* base, const LactSizes& n) {
    return {{base, base + n.matrix(), base + 2 * n.matrix()}};
  }
  template <class Args> static Weights initial(const Args& a, const LactSizes& n, int64_t head) {
    const int64_t at = head * n.matrix();
    return {{a.w0.template as<S>() + at, a.w1.template as<S>() + at, a.w2.template as<S>() + at}};
  }
};

template <class S> inline Vec<S> silu_slope(Vec<S> z, Vec<S> s) { return s * fma(z, Vec<S>(S(1)) - s, Vec<S>(S(1))); }
/// Second derivative of silu.
template <class S> inline Vec<S> silu_bend(Vec<S> z, Vec<S> s) {
  const Vec<S> one(S(1)), two(S(2));
  return s * (one - s) * fma(z, fma(-two, s, one), two);
}

/// The tokens of one head: token t of the batch at pointer + t * stride.
template <class S> struct HeadInputs {
  const S *q, *k, *v, *rates, *mix;  // mix: null without momentum
  int64_t stride, heads;

  template <class Args>
  HeadInputs(const Args& a, const LactSizes& n, int64_t head)
      : q(a.q.template as<S>() + head * n.dim),
        k(a.k.template as<S>() + head * n.dim),
        v(a.v.template as<S>() + head * n.dim),
        rates(a.rates.template as<S>() + 3 * head),
        mix(a.mix.defined() ? a.mix.template as<S>() + head : nullptr),
        stride(n.tokens()),
        heads(n.heads) {}
  S eta(int64_t token, int m, S shift) const { return smooth_softplus(rates[token * 3 * heads + m] + shift); }
};

/// out [rows, h] = x [rows, D] Wᵀ for W [h, D]; x with a stride.
template <class S> void project(const LactSizes& n, int64_t rows, const S* x, int64_t stride, const S* w, S* out) {
  gemm_serial<S>(false, true, rows, n.fast, n.dim, S(1), x, stride, w, n.dim, false, out, n.fast);
}
/// out [rows, h] = x [rows, D] W for W [D, h].
template <class S> void project_back(const LactSizes& n, int64_t rows, const S* x, int64_t stride, const S* w, S* out) {
  gemm_serial<S>(false, false, rows, n.fast, n.dim, S(1), x, stride, w, n.fast, false, out, n.fast);
}
/// g [h, D] += aᵀ x for a [rows, h], x [rows, D].
template <class S> void gather_in(const LactSizes& n, int64_t rows, const S* a, const S* x, int64_t stride, S* g) {
  gemm_serial<S>(true, false, n.fast, n.dim, rows, S(1), a, n.fast, x, stride, true, g, n.dim);
}
/// g [D, h] += xᵀ a.
template <class S> void gather_out(const LactSizes& n, int64_t rows, const S* a, const S* x, int64_t stride, S* g) {
  gemm_serial<S>(true, false, n.dim, n.fast, rows, S(1), x, stride, a, n.fast, true, g, n.fast);
}

/// Reads with and gathers for the fast weights of one head.
template <class S> class Memory {
 public:
  Memory(ScratchParts<S>& parts, const LactSizes& sizes)
      : n_(sizes),
        z0_(parts.take(kTile * n_.fast)),
        z2_(parts.take(kTile * n_.fast)),
        dh_(parts.take(kTile * n_.fast)) {}

  /// y = f(W, q) for `count` tokens.
  void read(const Weights<S>& w, int64_t count, const S* q, S* y, int64_t stride) {
    for (int64_t first = 0; first < count; first += kTile) {
      const int64_t rows = std::min(kTile, count - first);
      project(n_, rows, q + first * stride, stride, w.w[0], z0_);
      project(n_, rows, q + first * stride, stride, w.w[2], z2_);
      vector_loop<S>(rows * n_.fast, [&](int64_t i, auto lanes) {
        const Vec<S> z = load(z0_ + i, lanes);
        store(z0_ + i, z * sigmoid(z) * load(z2_ + i, lanes), lanes);
      });
      gemm_serial<S>(false, true, rows, n_.dim, n_.fast, S(1), z0_, n_.fast, w.w[1], n_.fast, false, y + first * stride,
                     stride);
    }
  }

  /// sums += G of `count` tokens from `token`; returns the sum of sigmoid(mix).
  S gather(const Weights<S>& w, const HeadInputs<S>& in, int64_t token, int64_t count, S shift, S* sums) {
    S mixed(0);
    for (int64_t first = 0; first < count; first += kTile) {
      const int64_t rows = std::min(kTile, count - first), at = token + first;
      const S *k = in.k + at * in.stride, *v = in.v + at * in.stride;
      project(n_, rows, k, in.stride, w.w[0], z0_);
      project(n_, rows, k, in.stride, w.w[2], z2_);
      project_back(n_, rows, v, in.stride, w.w[1], dh_);
      for (int64_t i = 0; i < rows; ++i) {
        weigh(in.eta(at + i, 0, shift), in.eta(at + i, 1, shift), in.eta(at + i, 2, shift), i * n_.fast);
        if (in.mix != nullptr) { mixed += logistic(in.mix[(at + i) * in.heads]); }
      }
      gather_in(n_, rows, z0_, k, in.stride, sums);
      gather_out(n_, rows, z2_, v, in.stride, sums + n_.matrix());
      gather_in(n_, rows, dh_, k, in.stride, sums + 2 * n_.matrix());
    }
    return mixed;
  }

 private:
  /// One token's z0, z2, dh become what multiplies its key or value in G0, G1, G2.
  void weigh(S eta0, S eta1, S eta2, int64_t at) {
    vector_loop<S>(n_.fast, [&](int64_t i, auto lanes) {
      const Vec<S> z = load(z0_ + at + i, lanes), up = load(z2_ + at + i, lanes), dh = load(dh_ + at + i, lanes);
      const Vec<S> s = sigmoid(z), silu = z * s;
      store(z0_ + at + i, Vec<S>(eta0) * dh * up * silu_slope(z, s), lanes);
      store(z2_ + at + i, Vec<S>(eta1) * silu * up, lanes);
      store(dh_ + at + i, Vec<S>(eta2) * dh * silu, lanes);
    });
  }

  LactSizes n_;
  S *z0_, *z2_, *dh_;  // [kTile, h]
};

/// M = sums + decay M (momentum), or sums.
template <class S> void accumulate(const LactSizes& n, const S* sums, S decay, const S* before, S* momentum) {
  if (before == nullptr) {
    std::copy_n(sums, n.all(), momentum);
    return;
  }
  vector_loop<S>(n.all(), [&](int64_t i, auto lanes) {
    store(momentum + i, fma(Vec<S>(decay), load(before + i, lanes), load(sums + i, lanes)), lanes);
  });
}

/// next = rownorm(w + step) N, row by row; N: lengths of the rows of `initial`. next may be w's own memory.
template <class S> void move_rows(int64_t rows, int64_t columns, const S* w, const S* step, const S* initial, S* next) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * columns;
    vector_loop<S>(columns, [&](int64_t i, auto lanes) {
      store(next + at + i, load(w + at + i, lanes) + load(step + at + i, lanes), lanes);
    });
    const S length = std::sqrt(dot_row(columns, next + at, next + at));
    const S target = std::sqrt(dot_row(columns, initial + at, initial + at));
    delta::scale_row(columns, target / (length + static_cast<S>(kNormEps)), next + at, next + at);
  }
}

/// Moves all three matrices by M, or by what Muon makes of it.
template <class S>
void move(const LactSizes& n, const LactRule& rule, const Weights<S>& w, const S* momentum, const Weights<S>& initial,
          NewtonSchulz<S>& muon, S* next) {
  for (int m = 0; m < 3; ++m) {
    const S* step = momentum + m * n.matrix();
    if (rule.muon) { step = muon.forward(n.rows(m), n.columns(m), step); }
    move_rows(n.rows(m), n.columns(m), w.w[m], step, initial.w[m], next + m * n.matrix());
  }
}

}  // namespace hebb::cpu::lact
