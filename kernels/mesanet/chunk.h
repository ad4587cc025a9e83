#pragma once
#include "kernels/common/formulas.h"
#include "kernels/gemm/kernel.h"
#include "kernels/mesanet/sizes.h"
#include "kernels/mesanet/solve.h"

/// What the forward and backward passes of the chunked mesa recurrence share.
namespace hebb::cpu::mesa {

using cpu::logistic;

template <class S> void fill_lambda(const MesanetRule& rule, int64_t n, const S* raw, S* lambda) {
  for (int64_t i = 0; i < n; ++i) { lambda[i] = static_cast<S>(rule.lambda_min) + softplus(raw[i]); }
}

/// Where the tokens of one head lie: token i of the batch at pointer + i * stride.
template <class S> struct HeadInputs {
  const S *q, *k, *v, *a, *b;
  int64_t key_stride, value_stride, gate_stride;

  template <class Args>
  HeadInputs(const Args& args, const MesanetSizes& n, int64_t head)
      : q(args.q.template as<S>() + head * n.key_dim),
        k(args.k.template as<S>() + head * n.key_dim),
        v(args.v.template as<S>() + head * n.value_dim),
        a(args.a.template as<S>() + head),
        b(args.b.template as<S>() + head),
        key_stride(n.heads * n.key_dim),
        value_stride(n.heads * n.value_dim),
        gate_stride(n.heads) {}
};

/// out = weights * pairs where j <= i, 0 above; all [c, c], out may be either.
template <class S> void weigh(int64_t c, const S* weights, const S* pairs, S* out) {
  for (int64_t i = 0; i < c; ++i) {
    const S *w = weights + i * c, *p = pairs + i * c;
    delta::lower_row(i, c, out + i * c, [&](int64_t j, auto lanes) { return load(w + j, lanes) * load(p + j, lanes); });
  }
}

/// R and S: of a row, of a chunk's start, or gradients.
template <class S> struct Memory {
  S *keys = nullptr, *values = nullptr;  // [dk, dk] [dk, dv]
  explicit operator bool() const { return keys != nullptr; }
};

/// One chunk of one head: its rows, decays and systems A_i = R_i + diag(lambda).
template <class S> class ChunkSystems {
 public:
  ChunkSystems(ScratchParts<S>& parts, const MesanetSizes& sizes, int64_t longest)
      : n(sizes),
        decays(parts, longest),
        g(parts.take(longest)),
        beta(parts.take(longest)),
        keys(parts.take(longest * n.key_dim)),
        values(parts.take(longest * n.value_dim)),
        weights(parts.take(longest * longest)),
        lambda(parts.take(n.key_dim)),
        pairs_(parts.take(longest * longest)),
        keys_t_(parts.take(round_up(longest) * n.key_dim)),
        scaled_(parts.take(longest * n.key_dim)),
        gradients_(parts, longest, n.key_dim),
        running_(parts.take(n.keys())),
        cholesky_(parts, n.key_dim) {}

  /// start: R and S before the chunk, or none for 0.
  void enter(const HeadInputs<S>& in, const DeltaChunk& chunk, const Memory<S>& before) {
    c = chunk.length;
    start = before;
    delta::gather_rows(c, n.key_dim, in.k + chunk.token * in.key_stride, in.key_stride, S(1), keys);
    delta::gather_rows(c, n.value_dim, in.v + chunk.token * in.value_stride, in.value_stride, S(1), values);
    for (int64_t i = 0; i < c; ++i) {
      g[i] = log_logistic(in.a[(chunk.token + i) * in.gate_stride]);
      beta[i] = logistic(in.b[(chunk.token + i) * in.gate_stride]);
    }
    decays.load_gates(g, 1, c);
  }

  /// M, for solve, apply and what reads the chunk.
  void fill_weights() {
    decays.fill_table(c);
    for (int64_t i = 0; i < c; ++i) {
      const S* d = decays.table + i * c;
      delta::lower_row(i, c, weights + i * c,
                       [&](int64_t j, auto lanes) { return load(d + j, lanes) * load(beta + j, lanes); });
    }
  }

  /// x_i A_i = b_i for all rows; x, b [c, dk], not the same memory.
  void solve(const MesanetRule& rule, const S* b, S* x) {
    if (rule.exact) {
      solve_exactly(b, x);
    } else {
      // Once for all steps: a product with a matrix that lies transposed packs it.
      gemm::pack_transposed<S>(n.key_dim, static_cast<int>(c), keys, n.key_dim, keys_t_, static_cast<int>(round_up(c)));
      gradients_.solve(c, rule, b, x, [&](const S* p, S* t) {
        for (int64_t first = 0; first < c; first += delta::kPanel) {
          gemm_serial<S>(false, false, c - first, std::min(delta::kPanel, c - first), n.key_dim, S(1),
                         p + first * n.key_dim, n.key_dim, keys_t_ + first, round_up(c), false,
                         pairs_ + first * c + first, c);
        }
        apply_pairs(p, t);
      });
    }
  }

  /// t_i = p_i A_i.
  void apply(const S* p, S* t) {
    delta::lower_products(c, n.key_dim, S(1), p, keys, false, pairs_);
    apply_pairs(p, t);
  }

  /// next (may be `start`) = R and S after the chunk. Overwrites the values.
  void advance(const Memory<S>& next) {
    const int64_t dk = n.key_dim, dv = n.value_dim;
    for (int64_t i = 0; i < c; ++i) {
      delta::scale_row(dv, decays.end[i] * beta[i], values + i * dv, values + i * dv);
      delta::scale_row(dk, decays.end[i] * beta[i], keys + i * dk, scaled_ + i * dk);
    }
    if (start) {
      delta::scale_row(n.keys(), decays.last, start.keys, next.keys);
      delta::scale_row(n.values(), decays.last, start.values, next.values);
    }
    gemm_serial<S>(true, false, dk, dv, c, S(1), keys, dk, values, dv, static_cast<bool>(start), next.values, dv);
    gemm_serial<S>(true, false, dk, dk, c, S(1), keys, dk, scaled_, dk, static_cast<bool>(start), next.keys, dk);
  }

  const MesanetSizes n;
  delta::Decays<S> decays;
  S *g, *beta;       // [c]
  S *keys, *values;  // [c, dk] [c, dv]
  S* weights;        // [c, c] M, 0 above the diagonal
  S* lambda;         // [dk]
  Memory<S> start;
  int64_t c = 0;

 private:
  /// The same, from p Kᵀ in pairs_.
  void apply_pairs(const S* p, S* t) {
    const int64_t dk = n.key_dim;
    weigh(c, weights, pairs_, pairs_);
    for (int64_t i = 0; i < c; ++i) {
      vector_loop<S>(dk, [&](int64_t a, auto lanes) {
        store(t + i * dk + a, load(p + i * dk + a, lanes) * load(lambda + a, lanes), lanes);
      });
    }
    if (start) {
      for (int64_t i = 0; i < c; ++i) { delta::scale_row(dk, decays.start[i], p + i * dk, scaled_ + i * dk); }
      gemm_serial<S>(false, false, c, dk, dk, S(1), scaled_, dk, start.keys, dk, true, t, dk);
    }
    delta::multiply_lower(c, dk, pairs_, keys, true, t, dk);
  }

  /// Token by token with R of its own.
  void solve_exactly(const S* b, S* x) {
    const int64_t dk = n.key_dim;
    if (start) {
      std::copy_n(start.keys, n.keys(), running_);
    } else {
      std::fill_n(running_, n.keys(), S(0));
    }
    for (int64_t i = 0; i < c; ++i) {
      const S *key = keys + i * dk, alpha = std::exp(g[i]);
      for (int64_t a = 0; a < dk; ++a) {
        const Vec<S> factor(beta[i] * key[a]);
        vector_loop<S>(a + 1, [&](int64_t at, auto lanes) {
          S* r = running_ + a * dk + at;
          store(r, fma(factor, load(key + at, lanes), Vec<S>(alpha) * load(r, lanes)), lanes);
        });
      }
      cholesky_.solve(running_, lambda, b + i * dk, x + i * dk);
    }
  }

  static int64_t round_up(int64_t rows) { return (rows + Vec<S>::width - 1) / Vec<S>::width * Vec<S>::width; }

  S *pairs_, *keys_t_, *scaled_;  // [c, c] [dk, c in whole vectors] [c, dk]
  ConjugateGradients<S> gradients_;
  S* running_;  // [dk, dk]
  Cholesky<S> cholesky_;
};

}  // namespace hebb::cpu::mesa
