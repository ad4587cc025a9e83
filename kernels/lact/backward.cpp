#include "kernels/lact/memory.h"
#include "kernels/lact/scratch.h"

namespace hebb {
namespace cpu {
namespace {

using lact::HeadInputs;
using lact::kTile;
using lact::LactSizes;
using lact::Weights;

/// Where the gradients of one head's tokens go; null: not wanted.
template <class S> struct HeadGradients {
  S *q, *k, *v, *rates, *mix;
  const LactBackward& args;

  HeadGradients(const LactBackward& a, const LactSizes& n, int64_t head)
      : q(at(a.d_q, head * n.dim)),
        k(at(a.d_k, head * n.dim)),
        v(at(a.d_v, head * n.dim)),
        rates(at(a.d_rates, 3 * head)),
        mix(at(a.d_mix, head)),
        args(a) {}

 private:
  static S* at(const Tensor& t, int64_t offset) { return t.defined() ? t.as<S>() + offset : nullptr; }
};

/// Reverse scan over the chunks of one head of one row.
template <class S> class Adjoint {
 public:
  Adjoint(ScratchParts<S>& parts, const LactSizes& sizes, int64_t updates)
      : n_(sizes),
        memory_(parts, n_),
        muon_(parts, n_.fast, n_.dim, true),
        versions_(parts.take(updates * n_.all())),
        momenta_(parts.take(updates * n_.all())),
        mixed_(parts.take(updates)),
        sums_(parts.take(n_.all())),
        d_weights_(parts.take(n_.all())),
        d_momentum_(parts.take(n_.all())),
        d_g_(parts.take(n_.all())),
        step_(parts.take(n_.matrix())),
        d_lengths_(parts.take(2 * n_.fast + n_.dim)) {
    for (S*& tile : tiles_) { tile = parts.take(kTile * n_.fast); }
  }

  /// The forward scan over the row: W and M after every update, and the sums of sigmoid(mix).
  int64_t scan(const LactBackward& a, const HeadInputs<S>& in, const Weights<S>& initial, int64_t row) {
    const int32_t* doc_start = a.doc_start.as<int32_t>() + row * n_.length;
    const int64_t c = a.rule.chunk;
    int64_t updates = 0;
    for (int64_t t = 0; t + c < n_.length;) {
      if (doc_start[t + c] != doc_start[t]) {  // the document's last chunk
        ++t;
        while (t < n_.length && doc_start[t] != t) { ++t; }
        continue;
      }
      const bool first = doc_start[t] == t;
      const Weights<S> before = version(first ? -1 : updates - 1, initial);
      std::fill_n(sums_, n_.all(), S(0));
      mixed_[updates] = memory_.gather(before, in, row * n_.length + t, c, static_cast<S>(a.rule.rate_shift), sums_);
      S* momentum = momenta_ + updates * n_.all();
      lact::accumulate(n_, sums_, mixed_[updates] / static_cast<S>(c),
                       a.rule.momentum && !first ? momentum - n_.all() : nullptr, momentum);
      lact::move(n_, a.rule, before, momentum, initial, muon_, versions_ + updates * n_.all());
      ++updates;
      t += c;
    }
    return updates;
  }

  /// One chunk, the latest that is not done; `update`: number of the update behind it, or -1.
  struct LactChunk {
    int64_t token, length, update;
    bool first;  // of its document
  };
  void begin_document() {
    std::fill_n(d_weights_, n_.all(), S(0));
    std::fill_n(d_momentum_, n_.all(), S(0));
    std::fill_n(d_lengths_, 2 * n_.fast + n_.dim, S(0));
  }
  /// current: W of the chunk.
  void differentiate(const LactRule& rule, const HeadInputs<S>& in, const LactChunk& chunk, const Weights<S>& current,
                     const Weights<S>& initial, const S* d_y, const HeadGradients<S>& out) {
    if (chunk.update >= 0) {
      undo_update(rule, chunk, current, initial);
      for (int64_t first = 0; first < chunk.length; first += kTile) {
        gather_back(rule, in, chunk.token + first, std::min(kTile, chunk.length - first), current, out);
      }
      write_mix(rule, in, chunk, out);
    } else {
      write_zeros(in, chunk, out);
    }
    for (int64_t first = 0; first < chunk.length; first += kTile) {
      read_back(in, chunk.token + first, std::min(kTile, chunk.length - first), current, d_y, out);
    }
  }
  /// Adds the gradient at the initial weights, once the document's first chunk is done; total [3 h D].
  void end_document(const Weights<S>& initial, S* total) const {
    delta::add_row(n_.all(), S(1), d_weights_, total);
    for (int m = 0; m < 3; ++m) {
      const int64_t columns = n_.columns(m);
      for (int64_t r = 0; r < n_.rows(m); ++r) {
        const S *row = initial.w[m] + r * columns, length = std::sqrt(dot_row(columns, row, row));
        if (length > S(0)) {
          delta::add_row(columns, lengths_of(m)[r] / length, row, total + m * n_.matrix() + r * columns);
        }
      }
    }
  }

  /// W after update i, -1: the initial weights.
  Weights<S> version(int64_t i, const Weights<S>& initial) const {
    return i < 0 ? initial : Weights<S>::together(versions_ + i * n_.all(), n_);
  }

 private:
  S* lengths_of(int m) const { return d_lengths_ + (m == 0 ? 0 : m == 1 ? n_.fast : n_.fast + n_.dim); }

  /// From the gradient at W after the update to those at W before it, at G (in d_g_) and at M before it.
  void undo_update(const LactRule& rule, const LactChunk& chunk, const Weights<S>& current, const Weights<S>& initial) {
    const S* momentum = momenta_ + chunk.update * n_.all();
    for (int m = 0; m < 3; ++m) {
      const S* moved = momentum + m * n_.matrix();
      S* d = d_g_ + m * n_.matrix();
      const S* step = rule.muon ? muon_.forward(n_.rows(m), n_.columns(m), moved) : moved;
      undo_move(m, current.w[m], step, initial.w[m]);
      std::copy_n(d_weights_ + m * n_.matrix(), n_.matrix(), d);
      if (rule.muon) { muon_.backward(n_.rows(m), n_.columns(m), moved, d, d); }
    }
    d_decay_ = S(0);
    if (!rule.momentum) { return; }
    const S decay = mixed_[chunk.update] / static_cast<S>(rule.chunk);
    delta::add_row(n_.all(), S(1), d_momentum_, d_g_);
    if (!chunk.first) {
      d_decay_ = dot_row(n_.all(), d_g_, momentum - n_.all());
      delta::scale_row(n_.all(), decay, d_g_, d_momentum_);
    }
  }

  /// W' = N P / (|P| + eps), P = W + step, row by row: d_weights_ from W' to P, and the gradient of N.
  void undo_move(int m, const S* w, const S* step, const S* initial) {
    const int64_t columns = n_.columns(m);
    S* d_lengths = lengths_of(m);
    for (int64_t r = 0; r < n_.rows(m); ++r) {
      const int64_t at = r * columns;
      S *d = d_weights_ + m * n_.matrix() + at, *p = step_;
      vector_loop<S>(columns, [&](int64_t i, auto lanes) {
        store(p + i, load(w + at + i, lanes) + load(step + at + i, lanes), lanes);
      });
      const S length = std::sqrt(dot_row(columns, p, p)), inverse = S(1) / (length + static_cast<S>(lact::kNormEps));
      const S target = std::sqrt(dot_row(columns, initial + at, initial + at));
      const S along = dot_row(columns, d, p) * inverse;
      d_lengths[r] += along;
      const Vec<S> scale(target * inverse), back(length > S(0) ? -target * inverse * along / length : S(0));
      vector_loop<S>(columns, [&](int64_t i, auto lanes) {
        store(d + i, fma(back, load(p + i, lanes), scale * load(d + i, lanes)), lanes);
      });
    }
  }

  /// One token of a tile: with b1 = v X1, c0 = k X0ᵀ, c2 = k X2ᵀ differentiates sum_j eta1 b1 s z2 + eta2 c2 dh s +
  /// eta0 c0 dh z2 s', s = silu(z0). z0, z2, dh become their gradients; c0, b1, c2 what multiplies X in those of k and
  /// v.
  void weigh_back(const HeadInputs<S>& in, S shift, int64_t token, int64_t at, const HeadGradients<S>& out) {
    S *z0 = tiles_[0] + at, *z2 = tiles_[1] + at, *dh = tiles_[2] + at;
    S *c0 = tiles_[3] + at, *b1 = tiles_[4] + at, *c2 = tiles_[5] + at;
    const Vec<S> eta0(in.eta(token, 0, shift)), eta1(in.eta(token, 1, shift)), eta2(in.eta(token, 2, shift));
    Vec<S> totals[3] = {Vec<S>(S(0)), Vec<S>(S(0)), Vec<S>(S(0))};
    vector_loop<S>(n_.fast, [&](int64_t i, auto lanes) {
      const Vec<S> z = load(z0 + i, lanes), up = load(z2 + i, lanes), down = load(dh + i, lanes), s = sigmoid(z);
      const Vec<S> silu = z * s, slope = lact::silu_slope(z, s);
      const Vec<S> g0 = load(c0 + i, lanes), g1 = load(b1 + i, lanes), g2 = load(c2 + i, lanes);
      const Vec<S> a0 = down * up * slope, a1 = silu * up, a2 = down * silu;
      totals[0] = fma(g0, a0, totals[0]);
      totals[1] = fma(g1, a1, totals[1]);
      totals[2] = fma(g2, a2, totals[2]);
      const Vec<S> e0 = eta0 * g0, e1 = eta1 * g1, e2 = eta2 * g2;
      store(z0 + i, fma(slope, fma(e1, up, e2 * down), e0 * down * up * lact::silu_bend(z, s)), lanes);
      store(z2 + i, fma(e1, silu, e0 * down * slope), lanes);
      store(dh + i, fma(e2, silu, e0 * up * slope), lanes);
      store(c0 + i, eta0 * a0, lanes);
      store(b1 + i, eta1 * a1, lanes);
      store(c2 + i, eta2 * a2, lanes);
    });
    for (int m = 0; out.rates != nullptr && m < 3; ++m) {
      const int64_t rate = token * 3 * in.heads + m;
      put(out.rates[rate], sum(totals[m]) * logistic(in.rates[rate] + shift), out.args.accumulate_rates);
    }
  }

  /// From the gradient X at G to those of keys, values and rates and, added, of W.
  void gather_back(const LactRule& rule, const HeadInputs<S>& in, int64_t token, int64_t rows,
                   const Weights<S>& current, const HeadGradients<S>& out) {
    const int64_t h = n_.fast, d = n_.dim, stride = in.stride, size = n_.matrix();
    const S *k = in.k + token * stride, *v = in.v + token * stride, *x0 = d_g_, *x1 = d_g_ + size,
            *x2 = d_g_ + 2 * size;
    S *z0 = tiles_[0], *z2 = tiles_[1], *dh = tiles_[2], *c0 = tiles_[3], *b1 = tiles_[4], *c2 = tiles_[5];
    lact::project(n_, rows, k, stride, current.w[0], z0);
    lact::project(n_, rows, k, stride, current.w[2], z2);
    lact::project_back(n_, rows, v, stride, current.w[1], dh);
    lact::project(n_, rows, k, stride, x0, c0);
    lact::project_back(n_, rows, v, stride, x1, b1);
    lact::project(n_, rows, k, stride, x2, c2);
    for (int64_t t = 0; t < rows; ++t) { weigh_back(in, static_cast<S>(rule.rate_shift), token + t, t * h, out); }
    if (out.k != nullptr) {
      S* d_k = out.k + token * stride;
      gemm_serial<S>(false, false, rows, d, h, S(1), z0, h, current.w[0], d, out.args.accumulate_k, d_k, stride);
      gemm_serial<S>(false, false, rows, d, h, S(1), z2, h, current.w[2], d, true, d_k, stride);
      gemm_serial<S>(false, false, rows, d, h, S(1), c0, h, x0, d, true, d_k, stride);
      gemm_serial<S>(false, false, rows, d, h, S(1), c2, h, x2, d, true, d_k, stride);
    }
    if (out.v != nullptr) {
      S* d_v = out.v + token * stride;
      gemm_serial<S>(false, true, rows, d, h, S(1), dh, h, current.w[1], h, out.args.accumulate_v, d_v, stride);
      gemm_serial<S>(false, true, rows, d, h, S(1), b1, h, x1, h, true, d_v, stride);
    }
    lact::gather_in(n_, rows, z0, k, stride, d_weights_);
    lact::gather_out(n_, rows, dh, v, stride, d_weights_ + size);
    lact::gather_in(n_, rows, z2, k, stride, d_weights_ + 2 * size);
  }

  void read_back(const HeadInputs<S>& in, int64_t token, int64_t rows, const Weights<S>& current, const S* d_y,
                 const HeadGradients<S>& out) {
    const int64_t h = n_.fast, d = n_.dim, stride = in.stride, size = n_.matrix();
    const S *q = in.q + token * stride, *g = d_y + token * stride;
    S *z0 = tiles_[0], *z2 = tiles_[1], *hidden = tiles_[2];
    lact::project(n_, rows, q, stride, current.w[0], z0);
    lact::project(n_, rows, q, stride, current.w[2], z2);
    lact::project_back(n_, rows, g, stride, current.w[1], hidden);
    vector_loop<S>(rows * h, [&](int64_t i, auto lanes) {
      const Vec<S> z = load(z0 + i, lanes), up = load(z2 + i, lanes), d_hidden = load(hidden + i, lanes),
                   s = sigmoid(z);
      store(hidden + i, z * s * up, lanes);
      store(z0 + i, d_hidden * up * lact::silu_slope(z, s), lanes);
      store(z2 + i, d_hidden * z * s, lanes);
    });
    if (out.q != nullptr) {
      S* d_q = out.q + token * stride;
      gemm_serial<S>(false, false, rows, d, h, S(1), z0, h, current.w[0], d, out.args.accumulate_q, d_q, stride);
      gemm_serial<S>(false, false, rows, d, h, S(1), z2, h, current.w[2], d, true, d_q, stride);
    }
    lact::gather_in(n_, rows, z0, q, stride, d_weights_);
    lact::gather_out(n_, rows, hidden, g, stride, d_weights_ + size);
    lact::gather_in(n_, rows, z2, q, stride, d_weights_ + 2 * size);
  }

  void write_mix(const LactRule& rule, const HeadInputs<S>& in, const LactChunk& chunk,
                 const HeadGradients<S>& out) const {
    if (out.mix == nullptr) { return; }
    for (int64_t t = 0; t < chunk.length; ++t) {
      const int64_t at = (chunk.token + t) * in.heads;
      const S s = logistic(in.mix[at]);
      put(out.mix[at], d_decay_ / static_cast<S>(rule.chunk) * s * (S(1) - s), out.args.accumulate_mix);
    }
  }

  /// Tokens of a document's last chunk write nothing.
  void write_zeros(const HeadInputs<S>& in, const LactChunk& chunk, const HeadGradients<S>& out) const {
    for (int64_t t = chunk.token; t < chunk.token + chunk.length; ++t) {
      if (out.k != nullptr && !out.args.accumulate_k) { std::fill_n(out.k + t * in.stride, n_.dim, S(0)); }
      if (out.v != nullptr && !out.args.accumulate_v) { std::fill_n(out.v + t * in.stride, n_.dim, S(0)); }
      if (out.rates != nullptr && !out.args.accumulate_rates) { std::fill_n(out.rates + t * 3 * in.heads, 3, S(0)); }
      if (out.mix != nullptr && !out.args.accumulate_mix) { out.mix[t * in.heads] = S(0); }
    }
  }

  LactSizes n_;
  lact::Memory<S> memory_;
  NewtonSchulz<S> muon_;
  S *versions_, *momenta_, *mixed_;  // [updates, 3 h D] twice, [updates]
  S *sums_, *d_weights_, *d_momentum_, *d_g_;
  S *step_, *d_lengths_;  // [h D], [2 h + D]: gradients of the rows' lengths N
  S* tiles_[6];           // [kTile, h]
  S d_decay_ = S(0);      // gradient at the momentum's factor
};

int64_t max_updates(int64_t length, int64_t chunk) { return (length - 1) / chunk; }

template <class S>
void backward_head(const LactBackward& a, const LactSizes& n, int64_t row, int64_t head, S* total, S* memory) {
  ScratchParts<S> parts(memory);
  Adjoint<S> adjoint(parts, n, max_updates(n.length, a.rule.chunk));
  const HeadInputs<S> in(a, n, head);
  const HeadGradients<S> out(a, n, head);
  const Weights<S> initial = Weights<S>::initial(a, n, head);
  const int32_t* doc_start = a.doc_start.as<int32_t>() + row * n.length;
  const S* d_y = a.d_y.as<S>() + head * n.dim;
  std::fill_n(total, n.all(), S(0));
  int64_t updates = adjoint.scan(a, in, initial, row);
  for (int64_t end = n.length; end > 0;) {
    const int64_t last = end - 1, begin = last - (last - doc_start[last]) % a.rule.chunk;
    const bool has_later = end < n.length && doc_start[end] == doc_start[last], first = doc_start[begin] == begin;
    if (has_later) {
      --updates;
    } else {
      adjoint.begin_document();
    }
    adjoint.differentiate(a.rule, in, {row * n.length + begin, end - begin, has_later ? updates : -1, first},
                          adjoint.version(first ? -1 : updates - 1, initial), initial, d_y, out);
    if (first) { adjoint.end_document(initial, total); }
    end = begin;
  }
}

}  // namespace

void run(Stream&, const LactBackward& a, const LactBackwardScratch& scratch) {
  dispatch_real(a.q.dtype, [&]<class S>(S) {
    const LactSizes n(a.q, a.w0);
    for_tasks(n.batch * n.heads, scratch.memory.size(0), [&](int64_t task, int64_t slot) {
      backward_head<S>(a, n, task / n.heads, task % n.heads, scratch.sums.as<S>() + task * n.all(),
                       scratch.memory.as<S>() + slot * scratch.memory.size(1));
    });
    S* d[3] = {a.d_w0.as<S>(), a.d_w1.as<S>(), a.d_w2.as<S>()};
    parallel_each(n.heads * 3, 1, [&](int64_t i) {
      const int64_t head = i / 3, m = i % 3;
      for (int64_t row = 0; d[m] != nullptr && row < n.batch; ++row) {
        delta::add_row(n.matrix(), S(1), scratch.sums.as<S>() + ((row * n.heads + head) * 3 + m) * n.matrix(),
                       d[m] + head * n.matrix());
      }
    });
  });
}

}  // namespace cpu

LactBackwardScratch plan(Workspace& workspace, const LactBackward& args) {
  const Shape& q = args.q.shape;
  const int64_t pairs = q[0] * q[2], dim = q[3], fast = args.w0.size(1);
  const DType dtype = sum_dtype(args.q.dtype);
  int64_t slots = pairs, elements;
  if (workspace.on_gpu()) {
    elements = LactLayout(q[1], args.rule, dim, fast, false, true).total;
  } else {
    slots = std::min<int64_t>(threads(), pairs);
    elements =
        cpu::elements_of<cpu::Adjoint<float>>(cpu::lact::LactSizes(dim, fast), cpu::max_updates(q[1], args.rule.chunk));
  }
  return {.sums = workspace.tensor({q[0], q[2], 3 * dim * fast}, dtype, "fast weight gradients"),
          .memory = workspace.tensor({slots, elements}, dtype, "fast weight versions")};
}
HEBB_KERNEL_PLANNED(LactBackward)

}  // namespace hebb
