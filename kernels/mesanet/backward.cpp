#include "kernels/mesanet/chunk.h"
#include "kernels/mesanet/scratch.h"

namespace hebb {
namespace cpu {
namespace {

using mesa::ChunkSystems;
using mesa::HeadInputs;
using mesa::Memory;

/// Reverse scan over the chunks of one head of one row (docs/layers/mesanet.md, Chunk form).
template <class S> class Adjoint {
 public:
  Adjoint(ScratchParts<S>& parts, const MesanetSizes& sizes, int64_t longest)
      : systems(parts, sizes, longest),
        n_(sizes),
        x_(parts.take(longest * n_.key_dim)),
        w_(parts.take(longest * n_.key_dim)),
        d_o_(parts.take(longest * n_.value_dim)),
        d_x_(parts.take(longest * n_.key_dim)),
        d_keys_(parts.take(longest * n_.key_dim)),
        d_values_(parts.take(longest * n_.value_dim)),
        read_(parts.take(longest * n_.key_dim)),
        value_read_(parts.take(longest * n_.value_dim)),
        products_(parts.take(longest * longest)),
        pairs_(parts.take(longest * longest)),
        weighted_(parts.take(longest * longest)),
        d_gam_(parts.doubles(longest)),
        d_beta_(parts.doubles(longest)),
        columns_(parts.doubles(longest)),
        d_memory_{parts.take(n_.keys()), parts.take(n_.values())} {}

  /// The gradient at the memory behind the row's last chunk is 0.
  void begin_row() { has_d_memory_ = false; }

  /// x, d_o: of the chunk's first token; strides as keys and values.
  void enter(const HeadInputs<S>& in, const DeltaChunk& chunk, const Memory<S>& start, const S* x, const S* d_o) {
    systems.enter(in, chunk, start);
    systems.fill_weights();
    delta::gather_rows(systems.c, n_.key_dim, x, in.key_stride, S(1), x_);
    delta::gather_rows(systems.c, n_.value_dim, d_o, in.value_stride, S(1), d_o_);
  }

  /// W, the solutions for dX = diag(e^gam) dO Sᵀ + (M * (dO Vᵀ)) K; keeps dO Vᵀ.
  void solve(const MesanetRule& rule) {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    const bool has_state = static_cast<bool>(systems.start);
    delta::lower_products(c, dv, S(1), d_o_, systems.values, false, pairs_);
    mesa::weigh(c, systems.weights, pairs_, weighted_);
    if (has_state) {
      gemm_serial<S>(false, true, c, dk, dv, S(1), d_o_, dv, systems.start.values, dv, false, d_x_, dk);
      for (int64_t i = 0; i < c; ++i) { delta::scale_row(dk, systems.decays.start[i], d_x_ + i * dk, d_x_ + i * dk); }
    }
    delta::multiply_lower(c, dk, weighted_, systems.keys, has_state, d_x_, dk);
    systems.solve(rule, d_x_, w_);
  }

  /// d_keys, d_values, and the gradients at beta and gam. dY = [-W | dO], E = dY [K | V]ᵀ.
  void differentiate() {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    delta::lower_products(c, dk, S(1), x_, systems.keys, false, products_);
    delta::lower_products(c, dk, S(-1), w_, systems.keys, true, pairs_);
    mesa::weigh(c, systems.weights, pairs_, weighted_);
    delta::multiply_lower_transposed(c, dk, weighted_, x_, false, d_keys_);
    add_pairs();
    mesa::weigh(c, systems.weights, products_, weighted_);
    delta::multiply_lower_transposed(c, dv, weighted_, d_o_, false, d_values_);
    // The pairs' keys as values of R.
    delta::multiply_lower_transposed(c, dk, weighted_, w_, false, read_);
    for (int64_t i = 0; i < c; ++i) { delta::add_row(dk, S(-1), read_ + i * dk, d_keys_ + i * dk); }
    if (systems.start) { add_reads(); }
    if (has_d_memory_) { add_writes(); }
  }

  /// d_lambda -= sum_i w_i * x_i.
  void add_lambda(S* d_lambda) const {
    const int64_t dk = n_.key_dim;
    for (int64_t i = 0; i < systems.c; ++i) {
      vector_loop<S>(dk, [&](int64_t a, auto lanes) {
        const Vec<S> product = load(w_ + i * dk + a, lanes) * load(x_ + i * dk + a, lanes);
        store(d_lambda + a, load(d_lambda + a, lanes) - product, lanes);
      });
    }
  }

  /// dZ = e^gam_last dZ + (diag(e^gam) X)ᵀ dY.
  void advance() {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    for (int64_t i = 0; i < c; ++i) { delta::scale_row(dk, systems.decays.start[i], x_ + i * dk, x_ + i * dk); }
    if (has_d_memory_) {
      delta::scale_row(n_.keys(), systems.decays.last, d_memory_.keys, d_memory_.keys);
      delta::scale_row(n_.values(), systems.decays.last, d_memory_.values, d_memory_.values);
    }
    gemm_serial<S>(true, false, dk, dk, c, S(-1), x_, dk, w_, dk, has_d_memory_, d_memory_.keys, dk);
    gemm_serial<S>(true, false, dk, dv, c, S(1), x_, dk, d_o_, dv, has_d_memory_, d_memory_.values, dv);
    has_d_memory_ = true;
  }

  void write_rows(S* d_q, S* d_k, int64_t key_stride, S* d_v, int64_t value_stride) const {
    for (int64_t i = 0; i < systems.c; ++i) {
      std::copy_n(w_ + i * n_.key_dim, n_.key_dim, d_q + i * key_stride);
      std::copy_n(d_keys_ + i * n_.key_dim, n_.key_dim, d_k + i * key_stride);
      std::copy_n(d_values_ + i * n_.value_dim, n_.value_dim, d_v + i * value_stride);
    }
  }

  /// Gradients at the logits: dg_i = sum_{j>=i} dgam_j, da = dg sigmoid(-a), db = dbeta beta (1 - beta). Null: not
  /// wanted.
  void write_gates(const S* a, S* d_a, bool accumulate_a, S* d_b, bool accumulate_b, int64_t stride) const {
    double sum = 0;
    for (int64_t i = systems.c - 1; i >= 0; --i) {
      sum += d_gam_[i];
      if (d_a != nullptr) {
        const S value = static_cast<S>(sum) * mesa::logistic(-a[i * stride]);
        d_a[i * stride] = accumulate_a ? d_a[i * stride] + value : value;
      }
      if (d_b != nullptr) {
        const S beta = systems.beta[i], value = static_cast<S>(d_beta_[i]) * beta * (S(1) - beta);
        d_b[i * stride] = accumulate_b ? d_b[i * stride] + value : value;
      }
    }
  }

  ChunkSystems<S> systems;

 private:
  /// The pairs' part of dbeta_j = sum_i D_ij Ps_ij E_ij and of dgam, row sums minus column sums of beta_j times the
  /// same. The diagonal cancels in dgam and is left out; sums are taken in double, since pairs of later tokens
  /// cancel in dg and their rounding would hide what a strong decay leaves of it.
  void add_pairs() {
    const int64_t c = systems.c;
    std::fill_n(columns_, c, 0.0);
    for (int64_t i = 0; i < c; ++i) {
      const S *d = systems.decays.table + i * c, *ps = products_ + i * c, *e = pairs_ + i * c;
      double row = 0;
      for (int64_t j = 0; j < i; ++j) {
        const double pair = static_cast<double>(d[j] * ps[j] * e[j]);
        columns_[j] += pair;
        row += static_cast<double>(systems.beta[j]) * pair;
      }
      d_gam_[i] = row;
      d_beta_[i] = static_cast<double>(ps[i] * e[i]);
    }
    for (int64_t i = 0; i < c; ++i) {
      d_beta_[i] += columns_[i];
      d_gam_[i] -= static_cast<double>(systems.beta[i]) * columns_[i];
    }
  }

  /// dgam_i += e^gam_i (x_i Z) . dY_i = e^gam_i x_i . (dO_i Sᵀ - w_i R).
  void add_reads() {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    gemm_serial<S>(false, true, c, dk, dv, S(1), d_o_, dv, systems.start.values, dv, false, read_, dk);
    gemm_serial<S>(false, true, c, dk, dk, S(-1), w_, dk, systems.start.keys, dk, true, read_, dk);
    for (int64_t i = 0; i < c; ++i) {
      d_gam_[i] += static_cast<double>(systems.decays.start[i] * dot_row(dk, x_ + i * dk, read_ + i * dk));
    }
  }

  /// What enters the memory behind the chunk: diag(e^(gam_last - gam) beta) of K dZ and of U dZᵀ.
  void add_writes() {
    const int64_t c = systems.c, dk = n_.key_dim, dv = n_.value_dim;
    gemm_serial<S>(false, false, c, dv, dk, S(1), systems.keys, dk, d_memory_.values, dv, false, value_read_, dv);
    gemm_serial<S>(false, true, c, dk, dk, S(1), systems.keys, dk, d_memory_.keys, dk, false, read_, dk);
    gemm_serial<S>(false, true, c, dk, dv, S(1), systems.values, dv, d_memory_.values, dv, true, read_, dk);
    gemm_serial<S>(false, false, c, dk, dk, S(1), systems.keys, dk, d_memory_.keys, dk, false, d_x_, dk);
    double total = 0;
    for (int64_t i = 0; i < c; ++i) {
      const S factor = systems.decays.end[i] * systems.beta[i];
      const double write =
          static_cast<double>(systems.decays.end[i] * dot_row(dk, systems.keys + i * dk, read_ + i * dk));
      delta::add_row(dv, factor, value_read_ + i * dv, d_values_ + i * dv);
      delta::add_row(dk, factor, read_ + i * dk, d_keys_ + i * dk);
      delta::add_row(dk, factor, d_x_ + i * dk, d_keys_ + i * dk);
      d_beta_[i] += write;
      d_gam_[i] -= static_cast<double>(systems.beta[i]) * write;
      total += static_cast<double>(systems.beta[i]) * write;
    }
    if (systems.start) {
      total +=
          static_cast<double>(systems.decays.last * (dot_row(n_.keys(), systems.start.keys, d_memory_.keys) +
                                                     dot_row(n_.values(), systems.start.values, d_memory_.values)));
    }
    d_gam_[c - 1] += total;
  }

  MesanetSizes n_;
  S *x_, *w_, *d_o_;                    // [c, dk] [c, dk] [c, dv]
  S *d_x_, *d_keys_;                    // [c, dk]
  S *d_values_, *read_, *value_read_;   // [c, dv] [c, dk] [c, dv]
  S *products_, *pairs_;                // [c, c] X Kᵀ, and dO Vᵀ, then E: lower triangles
  S* weighted_;                         // [c, c]
  double *d_gam_, *d_beta_, *columns_;  // [c]
  Memory<S> d_memory_;
  bool has_d_memory_ = false;
};

template <class S>
Memory<S> start_of(const MesanetBackwardScratch& scratch, const MesanetSizes& n, const DeltaChunk& chunk,
                   int64_t head) {
  const int64_t at = chunk.state * n.heads + head;
  return {scratch.key_starts.as<S>() + at * n.keys(), scratch.value_starts.as<S>() + at * n.values()};
}

/// R and S at chunk starts of one head of one row.
template <class S>
void recompute_head(const MesanetBackward& a, const MesanetBackwardScratch& scratch, const MesanetSizes& n, int64_t row,
                    int64_t head, ChunkSystems<S>& systems) {
  const HeadInputs<S> in(a, n, head);
  const int64_t* rows = a.grid.rows.as<int64_t>();
  for (int64_t i = rows[row]; i + 1 < rows[row + 1]; ++i) {
    const DeltaChunk chunk = delta::chunk_at(a.grid, i), next = delta::chunk_at(a.grid, i + 1);
    if (next.state >= 0) {
      systems.enter(in, chunk, chunk.state >= 0 ? start_of<S>(scratch, n, chunk, head) : Memory<S>{});
      systems.advance(start_of<S>(scratch, n, next, head));
    }
  }
}

template <class S>
void backward_head(const MesanetBackward& a, const MesanetBackwardScratch& scratch, const MesanetSizes& n, int64_t row,
                   int64_t head, S* work) {
  ScratchParts<S> parts(work);
  Adjoint<S> adjoint(parts, n, a.grid.longest);
  const HeadInputs<S> in(a, n, head);
  mesa::fill_lambda(a.rule, n.key_dim, a.lambda_raw.as<S>() + head * n.key_dim, adjoint.systems.lambda);
  recompute_head(a, scratch, n, row, head, adjoint.systems);
  S* d_lambda = scratch.lambda_sums.as<S>() + (row * n.heads + head) * n.key_dim;
  std::fill_n(d_lambda, n.key_dim, S(0));
  const int64_t* rows = a.grid.rows.as<int64_t>();
  adjoint.begin_row();
  for (int64_t i = rows[row + 1] - 1; i >= rows[row]; --i) {
    const DeltaChunk chunk = delta::chunk_at(a.grid, i);
    const bool continues = chunk.state >= 0;
    const int64_t value_at = chunk.token * in.value_stride + head * n.value_dim;
    const int64_t gate_at = chunk.token * in.gate_stride + head;
    const int64_t key_at = chunk.token * in.key_stride + head * n.key_dim;
    adjoint.enter(in, chunk, continues ? start_of<S>(scratch, n, chunk, head) : Memory<S>{}, a.x.as<S>() + key_at,
                  a.d_o.as<S>() + value_at);
    adjoint.solve(a.rule);
    adjoint.differentiate();
    adjoint.add_lambda(d_lambda);
    adjoint.write_rows(a.d_q.as<S>() + key_at, a.d_k.as<S>() + key_at, in.key_stride, a.d_v.as<S>() + value_at,
                       in.value_stride);
    adjoint.write_gates(a.a.as<S>() + gate_at, a.d_a.defined() ? a.d_a.as<S>() + gate_at : nullptr, a.accumulate_a,
                        a.d_b.defined() ? a.d_b.as<S>() + gate_at : nullptr, a.accumulate_b, in.gate_stride);
    if (continues) {
      adjoint.advance();
    } else {
      adjoint.begin_row();
    }
  }
}

}  // namespace

void run(Stream&, const MesanetBackward& a, const MesanetBackwardScratch& scratch) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const MesanetSizes n(a.k, a.v);
    const Tensor& work = scratch.work;
    for_tasks(n.batch * n.heads, work.size(0), [&](int64_t task, int64_t slot) {
      backward_head<S>(a, scratch, n, task / n.heads, task % n.heads, work.as<S>() + slot * work.size(1));
    });
    if (a.d_lambda_raw.defined()) {
      const S *raw = a.lambda_raw.as<S>(), *sums = scratch.lambda_sums.as<S>();
      const int64_t count = n.heads * n.key_dim;
      for (int64_t i = 0; i < count; ++i) {
        S total(0);
        for (int64_t row = 0; row < n.batch; ++row) { total += sums[row * count + i]; }
        a.d_lambda_raw.as<S>()[i] += total * mesa::logistic(raw[i]);
      }
    }
  });
}

}  // namespace cpu

MesanetBackwardScratch plan(Workspace& workspace, const MesanetBackward& args) {
  const Shape &k = args.k.shape, &v = args.v.shape;
  const DType dtype = sum_dtype(args.v.dtype);
  const int64_t elements = cpu::elements_of<cpu::Adjoint<float>>(MesanetSizes(k[3], v[3]), args.grid.longest);

  MesanetBackwardScratch scratch;
  scratch.key_starts = mesanet_starts(workspace, args.grid, args.k, k[3], dtype);
  scratch.value_starts = mesanet_starts(workspace, args.grid, args.k, v[3], dtype);
  scratch.lambda_sums = workspace.tensor({k[0], k[2], k[3]}, dtype, "mesa ridge sums");
  scratch.work = mesanet_work(workspace, k[0] * k[2], args.grid.chunks.size(0) * k[2], elements, dtype);
  if (workspace.on_gpu()) {
    scratch.solutions = workspace.tensor(k, dtype, "mesa second solutions");
    scratch.d_key_starts = mesanet_starts(workspace, args.grid, args.k, k[3], dtype);
    scratch.d_value_starts = mesanet_starts(workspace, args.grid, args.k, v[3], dtype);
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(MesanetBackward)

}  // namespace hebb
