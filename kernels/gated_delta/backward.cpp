#include "kernels/common/cpu/math.h"
#include "kernels/gated_delta/chunk_scan.h"
#include "kernels/gated_delta/scratch.h"
#include "kernels/gemm/kernel.h"

namespace hebb {
namespace cpu {
namespace {

using delta::ChunkScan;
using delta::HeadInputs;

/// The reverse scan over the chunks of one value head of one row (docs/layers/gdn.md, Chunk form). Stacked matrices: KQ
/// = [K; Q], XO = [X; dO].
template <class S> class Adjoint {
 public:
  /// additive: E = v, and the keys' parts that come from the correction are absent.
  Adjoint(ScratchParts<S>& parts, const DeltaSizes& sizes, int64_t longest, bool additive)
      : n_(sizes),
        additive_(additive),
        decays_(parts, longest),
        beta_(parts.take(longest)),
        kq_(parts.take(2 * longest * n_.key_dim)),
        d_kq_(parts.take(2 * longest * n_.key_dim)),
        work_(parts.take(2 * longest * n_.key_dim)),
        products_(parts.take(2 * longest * longest)),
        weights_(parts.take(2 * longest * longest)),
        xo_(parts.take(2 * longest * n_.value_dim)),
        delta_(parts.take(longest * n_.value_dim)),
        pairs_(parts.take(longest + Vec<S>::width)),
        d_gam_(parts.doubles(longest)),
        columns_(parts.doubles(longest + Vec<double>::width)),
        d_state_(parts.take(n_.state())) {}

  /// The gradient at the state behind the row's last chunk is 0.
  void begin_row() { has_d_state_ = false; }

  /// state: before the chunk, or null for 0. errors: E of the chunk. d_o: row stride as v.
  void enter(const HeadInputs<S>& in, const DeltaChunk& chunk, S scale, const S* state, const S* errors, const S* d_o) {
    c_ = chunk.length;
    state_ = state;
    errors_ = errors;
    const int64_t dk = n_.key_dim, dv = n_.value_dim;
    delta::gather_rows(c_, dk, in.k + chunk.token * in.key_stride, in.key_stride, S(1), kq_);
    delta::gather_rows(c_, dk, in.q + chunk.token * in.key_stride, in.key_stride, scale, kq_ + c_ * dk);
    delta::gather(c_, in.beta + chunk.token * in.gate_stride, in.gate_stride, beta_);
    delta::gather_rows(c_, dv, d_o, in.value_stride, S(1), xo_ + c_ * dv);
    for (int64_t i = 0; i < c_; ++i) { delta::scale_row(dv, beta_[i], errors_ + i * dv, delta_ + i * dv); }
    decays_.load_gates(in.g + chunk.token * in.gate_stride, in.gate_stride, c_);
    decays_.fill_table(c_);
    if (additive_) {
      delta::lower_products(c_, dk, S(1), kq_ + c_ * dk, kq_, false, products_ + c_ * c_);
    } else {
      delta::pair_products(c_, dk, kq_, kq_, products_);
    }
  }

  /// X = Mᵀ (Pᵀ dO + diag(e^(gam_last - gam)) K dS1), M = I where additive.
  void solve() {
    const int64_t dk = n_.key_dim, dv = n_.value_dim;
    S *lower = weights_, *p = weights_ + c_ * c_;
    for (int64_t i = 0; i < c_; ++i) {
      const S *d = decays_.table + i * c_, *kk = products_ + i * c_, *qk = products_ + (c_ + i) * c_;
      const Vec<S> strength(beta_[i]);
      if (!additive_) {
        delta::lower_row(i, c_, lower + i * c_,
                         [&](int64_t j, auto lanes) { return strength * load(d + j, lanes) * load(kk + j, lanes); });
      }
      delta::lower_row(i, c_, p + i * c_,
                       [&](int64_t j, auto lanes) { return load(d + j, lanes) * load(qk + j, lanes); });
    }
    if (has_d_state_) {
      gemm_serial<S>(false, false, c_, dv, dk, S(1), kq_, dk, d_state_, dv, false, xo_, dv);
      for (int64_t i = 0; i < c_; ++i) { delta::scale_row(dv, decays_.end[i], xo_ + i * dv, xo_ + i * dv); }
    }
    delta::multiply_lower_transposed(c_, dv, p, xo_ + c_ * dv, has_d_state_, xo_);
    if (!additive_) { delta::solve_lower_transposed(c_, dv, lower, xo_); }
  }

  /// dv = diag(beta) X and dbeta_i = X_i . E_i.
  void write_values(S* d_v, int64_t value_stride, S* d_beta, int64_t gate_stride) const {
    const int64_t dv = n_.value_dim;
    for (int64_t i = 0; i < c_; ++i) {
      delta::scale_row(dv, beta_[i], xo_ + i * dv, d_v + i * value_stride);
      d_beta[i * gate_stride] = dot_row(dv, xo_ + i * dv, errors_ + i * dv);
    }
  }

  /// Gradients of K and the scaled Q, and of gam.
  void differentiate() {
    if (additive_) {
      differentiate_additive();
      return;
    }
    const int64_t dk = n_.key_dim, dv = n_.value_dim;
    delta::pair_products(c_, dv, xo_, delta_, weights_);
    weigh_pairs();
    if (state_ != nullptr) {
      gemm_serial<S>(false, true, 2 * c_, dk, dv, S(1), xo_, dv, state_, dv, false, d_kq_, dk);
      for (int64_t i = 0; i < c_; ++i) {
        read_state(d_kq_ + i * dk, kq_ + i * dk, -beta_[i] * decays_.start[i], i);
        read_state(d_kq_ + (c_ + i) * dk, kq_ + (c_ + i) * dk, decays_.start[i], i);
      }
    }
    const S* pairs_q = weights_ + c_ * c_;
    gemm_serial<S>(false, false, c_, dk, c_, S(1), weights_, c_, kq_, dk, state_ != nullptr, d_kq_, dk);
    delta::multiply_lower_transposed(c_, dk, pairs_q, kq_ + c_ * dk, true, d_kq_);
    delta::multiply_lower(c_, dk, pairs_q, kq_, state_ != nullptr, d_kq_ + c_ * dk, dk);
    if (has_d_state_) { write_state_gradient(); }
  }

  /// dS = e^gam_last dS1 + (diag(e^gam) Q)ᵀ dO - (diag(beta e^gam) K)ᵀ X, without the last term where additive.
  void advance() {
    const int64_t dk = n_.key_dim, dv = n_.value_dim, skip = additive_ ? c_ : 0;
    for (int64_t i = 0; i < c_; ++i) {
      if (!additive_) { delta::scale_row(dk, -beta_[i] * decays_.start[i], kq_ + i * dk, work_ + i * dk); }
      delta::scale_row(dk, decays_.start[i], kq_ + (c_ + i) * dk, work_ + (c_ + i) * dk);
    }
    if (has_d_state_) { delta::scale_row(n_.state(), decays_.last, d_state_, d_state_); }
    gemm_serial<S>(true, false, dk, dv, 2 * c_ - skip, S(1), work_ + skip * dk, dk, xo_ + skip * dv, dv, has_d_state_,
                   d_state_, dv);
    has_d_state_ = true;
  }

  void write_keys(S* d_q, S* d_k, int64_t stride, S scale, bool accumulate) const {
    const int64_t dk = n_.key_dim;
    for (int64_t i = 0; i < c_; ++i) {
      const S *from_k = d_kq_ + i * dk, *from_q = d_kq_ + (c_ + i) * dk;
      if (accumulate) {
        delta::add_row(dk, S(1), from_k, d_k + i * stride);
        delta::add_row(dk, scale, from_q, d_q + i * stride);
      } else {
        delta::scale_row(dk, S(1), from_k, d_k + i * stride);
        delta::scale_row(dk, scale, from_q, d_q + i * stride);
      }
    }
  }

  /// dg_i = sum_{j>=i} dgam_j.
  void write_gates(S* d_g, int64_t stride) const {
    double sum = 0;
    for (int64_t i = c_ - 1; i >= 0; --i) {
      sum += d_gam_[i];
      d_g[i * stride] = static_cast<S>(sum);
    }
  }

  const S* d_state() const { return d_state_; }

 private:
  /// dQ = diag(e^gam) dO Sᵀ + Pb K and dK = Pbᵀ Q + what the state behind the chunk gives (docs/layers/mamba2.md, Chunk
  /// form).
  void differentiate_additive() {
    const int64_t dk = n_.key_dim, dv = n_.value_dim;
    S *pairs_q = weights_ + c_ * c_, *d_q = d_kq_ + c_ * dk;
    delta::lower_products(c_, dv, S(1), xo_ + c_ * dv, delta_, false, pairs_q);
    std::fill_n(columns_, c_, 0.0);
    for (int64_t i = 0; i < c_; ++i) {
      const S *d = decays_.table + i * c_, *qk = products_ + (c_ + i) * c_;
      S* pb = pairs_q + i * c_;
      vector_loop<S>(i, [&](int64_t j, auto lanes) {
        const Vec<S> pij = load(d + j, lanes) * load(pb + j, lanes);
        store(pb + j, pij, lanes);
        store(pairs_ + j, pij * load(qk + j, lanes), lanes);
      });
      std::fill(pb + i + 1, pb + c_, S(0));  // pb[i] stays: D_ii = 1
      d_gam_[i] = add_pairs(i);
    }
    for (int64_t i = 0; i < c_; ++i) { d_gam_[i] -= columns_[i]; }
    if (state_ != nullptr) {
      gemm_serial<S>(false, true, c_, dk, dv, S(1), xo_ + c_ * dv, dv, state_, dv, false, d_q, dk);
      for (int64_t i = 0; i < c_; ++i) { read_state(d_q + i * dk, kq_ + (c_ + i) * dk, decays_.start[i], i); }
    }
    delta::multiply_lower(c_, dk, pairs_q, kq_, state_ != nullptr, d_q, dk);
    delta::multiply_lower_transposed(c_, dk, pairs_q, kq_ + c_ * dk, false, d_kq_);
    if (has_d_state_) { write_state_gradient(); }
  }

  /// From [X; dO] deltaᵀ to the weights of pairs: [W + Wᵀ; Pb] with W_ij = beta_i Ab_ij, and the pairs'
  /// part of dgam: row sums minus column sums of G. The diagonal of G and, in dg, all pairs of later tokens
  /// cancel: they are left out or summed in double, or their rounding would hide what a strong decay leaves of dg.
  void weigh_pairs() {
    std::fill_n(columns_, c_, 0.0);
    for (int64_t i = 0; i < c_; ++i) {
      const S *d = decays_.table + i * c_, *kk = products_ + i * c_, *qk = products_ + (c_ + i) * c_;
      S *w = weights_ + i * c_, *pb = weights_ + (c_ + i) * c_;
      const Vec<S> strength(-beta_[i]);
      vector_loop<S>(i, [&](int64_t j, auto lanes) {
        const Vec<S> decay = load(d + j, lanes);
        const Vec<S> wij = strength * decay * load(w + j, lanes), pij = decay * load(pb + j, lanes);
        store(w + j, wij, lanes);
        store(pb + j, pij, lanes);
        store(pairs_ + j, fma(wij, load(kk + j, lanes), pij * load(qk + j, lanes)), lanes);
      });
      w[i] = S(0);  // pb[i] stays: D_ii = 1
      std::fill(pb + i + 1, pb + c_, S(0));
      d_gam_[i] = add_pairs(i);
    }
    for (int64_t i = 0; i < c_; ++i) { d_gam_[i] -= columns_[i]; }
    mirror();
  }

  /// Adds the first n of pairs_ to columns_ and returns their sum.
  double add_pairs(int64_t n) {
    constexpr int64_t w = Vec<double>::width;
    std::fill_n(pairs_ + n, w, S(0));
    Vec<double> total(0.0);
    for (int64_t j = 0; j < n; j += w) {
      typedef S Narrow __attribute__((vector_size(w * sizeof(S))));
      Narrow narrow;
      std::memcpy(&narrow, pairs_ + j, sizeof(narrow));
      const Vec<double> wide(__builtin_convertvector(narrow, Vec<double>::Native));
      total += wide;
      store(columns_ + j, load(columns_ + j) + wide);
    }
    return sum(total);
  }

  /// Copies the strict lower triangle of W above the diagonal, by square blocks of whole vectors.
  void mirror() {
    constexpr int64_t w = Vec<S>::width;
    const int64_t whole = c_ / w * w;
    for (int64_t i = 0; i < c_; ++i) {
      for (int64_t j = i < whole ? i / w * w : 0; j < i; ++j) { weights_[j * c_ + i] = weights_[i * c_ + j]; }
    }
    for (int64_t i = w; i < whole; i += w) {
      for (int64_t j = 0; j < i; j += w) {
        Vec<S> rows[w];
        for (int64_t r = 0; r < w; ++r) { rows[r] = load(weights_ + (i + r) * c_ + j); }
        gemm::transpose(rows);
        for (int64_t r = 0; r < w; ++r) { store(weights_ + (j + r) * c_ + i, rows[r]); }
      }
    }
  }

  /// Turns one row of [X; dO] Sᵀ into its share of the gradient, factor times it.
  void read_state(S* d, const S* key, S factor, int64_t i) {
    delta::scale_row(n_.key_dim, factor, d, d);
    d_gam_[i] += static_cast<double>(dot_row(n_.key_dim, d, key));
  }

  /// The keys' gradient from the state behind the chunk, and dgam of what wrote and kept it.
  void write_state_gradient() {
    const int64_t dk = n_.key_dim, dv = n_.value_dim;
    gemm_serial<S>(false, true, c_, dk, dv, S(1), delta_, dv, d_state_, dv, false, work_, dk);
    double total = 0;
    for (int64_t i = 0; i < c_; ++i) {
      const double r = static_cast<double>(decays_.end[i] * dot_row(dk, kq_ + i * dk, work_ + i * dk));
      delta::add_row(dk, decays_.end[i], work_ + i * dk, d_kq_ + i * dk);
      d_gam_[i] -= r;
      total += r;
    }
    d_gam_[c_ - 1] += total;
    if (state_ != nullptr) {
      d_gam_[c_ - 1] += static_cast<double>(decays_.last * dot_row(n_.state(), state_, d_state_));
    }
  }

  DeltaSizes n_;
  bool additive_;
  delta::Decays<S> decays_;
  S *beta_, *kq_, *d_kq_, *work_;  // [c] [2 c, dk] three times
  S *products_, *weights_;         // [2 c, c]
  S *xo_, *delta_;                 // [2 c, dv] [c, dv]
  S* pairs_;                       // [c], a row of G
  double *d_gam_, *columns_;       // [c]
  S* d_state_;                     // [dk, dv]
  int64_t c_ = 0;
  const S *state_ = nullptr, *errors_ = nullptr;
  bool has_d_state_ = false;
};

/// E of one chunk of one value head, [length, dv]: a chunk's heads lie one after the other.
template <class S>
S* errors_of(const GatedDeltaBackwardScratch& scratch, const DeltaSizes& n, const DeltaChunk& chunk, int64_t head) {
  return scratch.errors.as<S>() + (chunk.token * n.value_heads + head * chunk.length) * n.value_dim;
}
template <class S>
S* start_of(const GatedDeltaBackwardScratch& scratch, const DeltaSizes& n, const DeltaChunk& chunk, int64_t head) {
  return scratch.starts.as<S>() + (chunk.state * n.value_heads + head) * n.state();
}

/// States at chunk starts and prediction errors of one value head of one row.
template <class S>
void recompute_head(const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch, const DeltaSizes& n,
                    int64_t row, int64_t head, S* work) {
  ScratchParts<S> parts(work);
  ChunkScan<S> scan(parts, n, a.grid.longest);
  const HeadInputs<S> in(a, n, head);
  scan.begin_row(nullptr, a.initial_state.defined() ? a.initial_state.as<S>() + head * n.state() : nullptr);
  const int64_t* rows = a.grid.rows.as<int64_t>();
  for (int64_t i = rows[row]; i < rows[row + 1]; ++i) {
    const DeltaChunk chunk = delta::chunk_at(a.grid, i);
    scan.enter(chunk.state < 0);
    const int64_t later = i + 1 < rows[row + 1] ? delta::chunk_at(a.grid, i + 1).length : 0,
                  next = chunk.token + chunk.length;
    delta::prefetch_rows(later, n.key_dim, in.k + next * in.key_stride, in.key_stride);
    delta::prefetch_rows(later, n.value_dim, in.v + next * in.value_stride, in.value_stride);
    scan.solve(in, chunk, S(1), !a.additive, false, errors_of<S>(scratch, n, chunk, head));
    if (i + 1 < rows[row + 1] && delta::chunk_at(a.grid, i + 1).state >= 0) {
      scan.advance(chunk.length, start_of<S>(scratch, n, delta::chunk_at(a.grid, i + 1), head));
    }
  }
}

template <class S>
void backward_head(const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch, const DeltaSizes& n,
                   int64_t row, int64_t head, bool accumulate, S* work) {
  ScratchParts<S> parts(work);
  Adjoint<S> adjoint(parts, n, a.grid.longest, a.additive);
  const HeadInputs<S> in(a, n, head);
  const S scale = static_cast<S>(a.scale);
  const S* initial = a.initial_state.defined() ? a.initial_state.as<S>() + head * n.state() : nullptr;
  S* initial_sum = scratch.initial_sums.defined()
                       ? scratch.initial_sums.as<S>() + (row * n.value_heads + head) * n.state()
                       : nullptr;
  if (initial_sum != nullptr) { std::fill_n(initial_sum, n.state(), S(0)); }
  const int64_t* rows = a.grid.rows.as<int64_t>();
  adjoint.begin_row();
  for (int64_t i = rows[row + 1] - 1; i >= rows[row]; --i) {
    const DeltaChunk chunk = delta::chunk_at(a.grid, i);
    const bool continues = chunk.state >= 0;
    const S* state = continues ? start_of<S>(scratch, n, chunk, head) : initial;
    const int64_t value_at = chunk.token * in.value_stride + head * n.value_dim;
    const int64_t gate_at = chunk.token * in.gate_stride + head;
    const int64_t key_at = chunk.token * in.key_stride + head / n.group() * n.key_dim;
    const int64_t c = chunk.length, earlier = i > rows[row] ? delta::chunk_at(a.grid, i - 1).length : 0;
    delta::prefetch_rows(c, n.key_dim, a.d_q.as<S>() + key_at, in.key_stride);
    delta::prefetch_rows(c, n.key_dim, a.d_k.as<S>() + key_at, in.key_stride);
    delta::prefetch_rows(c, n.value_dim, a.d_v.as<S>() + value_at, in.value_stride);
    delta::prefetch_rows(earlier, n.key_dim, in.q + (chunk.token - earlier) * in.key_stride, in.key_stride);
    delta::prefetch_rows(earlier, n.value_dim, a.d_o.as<S>() + value_at - earlier * in.value_stride, in.value_stride);
    adjoint.enter(in, chunk, scale, state, errors_of<S>(scratch, n, chunk, head), a.d_o.as<S>() + value_at);
    adjoint.solve();
    adjoint.write_values(a.d_v.as<S>() + value_at, in.value_stride, a.d_beta.as<S>() + gate_at, in.gate_stride);
    adjoint.differentiate();
    adjoint.write_keys(a.d_q.as<S>() + key_at, a.d_k.as<S>() + key_at, in.key_stride, scale, accumulate);
    adjoint.write_gates(a.d_g.as<S>() + gate_at, in.gate_stride);
    if (continues || initial_sum != nullptr) { adjoint.advance(); }
    if (!continues) {
      if (initial_sum != nullptr) { delta::add_row(n.state(), S(1), adjoint.d_state(), initial_sum); }
      adjoint.begin_row();
    }
  }
}

}  // namespace

void run(Stream&, const GatedDeltaBackward& a, const GatedDeltaBackwardScratch& scratch) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const DeltaSizes n(a.k, a.v);
    const int64_t slots = scratch.work.size(0), group = n.value_heads / n.key_heads;
    // A key head's gradient is the sum over its value heads, in order: they share a task.
    for_tasks(n.batch * n.key_heads, slots, [&](int64_t task, int64_t slot) {
      S* work = scratch.work.as<S>() + slot * scratch.work.size(1);
      const int64_t row = task / n.key_heads, first = task % n.key_heads * group;
      for (int64_t head = first; head < first + group; ++head) {
        recompute_head<S>(a, scratch, n, row, head, work);
        backward_head<S>(a, scratch, n, row, head, head > first, work);
      }
    });
    const int64_t states = n.value_heads * n.state();
    add_blocks(a.d_initial_state, n.batch, states, scratch.initial_sums.as<S>(), states);
  });
}

}  // namespace cpu

GatedDeltaBackwardScratch plan(Workspace& workspace, const GatedDeltaBackward& args) {
  const Shape &k = args.k.shape, &v = args.v.shape;
  const DType dtype = sum_dtype(args.v.dtype);
  GatedDeltaBackwardScratch scratch;
  scratch.starts = workspace.tensor({args.grid.states, v[2], k[3], v[3]}, dtype, "delta rule states");
  scratch.errors = workspace.tensor(v, dtype, "delta rule errors");
  if (args.d_initial_state.defined()) {
    scratch.initial_sums = workspace.tensor({v[0], v[2], k[3], v[3]}, dtype, "initial state sums");
  }
  const Cores cores = gated_delta_cores(args.k, args.v, args.grid.longest, false,
                                        {args.q, args.k, args.v, args.d_o, args.d_q, args.d_k, args.d_v});
  scratch.on_tensor_cores = takes_tensor_cores(workspace.stream(), "delta rule", cores);
  if (scratch.on_tensor_cores) {
    const int64_t initial = args.initial_state.defined() ? args.initial_state.numel() / 2 : 0;
    scratch.adjoints = workspace.tensor({v.numel() + initial}, dtype, "delta rule adjoints");
    if (args.additive) {
      scratch.parts = workspace.tensor({2, v.numel()}, DType::bf16, "delta rule parts");
      scratch.d_q = workspace.tensor(k, DType::bf16, "delta rule parts");
      scratch.d_k = workspace.tensor(k, DType::bf16, "delta rule parts");
      scratch.d_v = workspace.tensor(v, DType::bf16, "delta rule parts");
      scratch.d_g = workspace.tensor(args.g.shape, dtype, "delta rule parts");
      scratch.d_beta = workspace.tensor(args.g.shape, dtype, "delta rule parts");
    }
  } else {
    const DeltaSizes sizes(args.k, args.v);
    const int64_t elements = std::max(cpu::elements_of<cpu::Adjoint<float>>(sizes, args.grid.longest, false),
                                      cpu::delta::scan_elements(sizes, args.grid.longest));

    scratch.work =
        workspace.tensor({scratch_slots(workspace.stream(), k[0] * k[2]), elements}, dtype, "delta rule scratch");
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(GatedDeltaBackward)

}  // namespace hebb
