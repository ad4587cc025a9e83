#include "kernels/mesanet/chunk.h"
#include "kernels/mesanet/scratch.h"

namespace hebb {
namespace cpu {
namespace {

using mesa::ChunkSystems;
using mesa::HeadInputs;
using mesa::Memory;

/// Scan over the chunks of one head of one row.
template <class S> struct MesanetForwardParts {
  ChunkSystems<S> systems;
  S *q, *x, *read, *pairs, *output;  // [c, dk] three times, [c, c], [c, dv]
  Memory<S> own;

  MesanetForwardParts(ScratchParts<S>& parts, const MesanetSizes& n, int64_t longest)
      : systems(parts, n, longest),
        q(parts.take(longest * n.key_dim)),
        x(parts.take(longest * n.key_dim)),
        read(parts.take(longest * n.key_dim)),
        pairs(parts.take(longest * longest)),
        output(parts.take(longest * n.value_dim)),
        own{parts.take(n.keys()), parts.take(n.values())} {}

  /// o = diag(e^gam) X S + (M * (X Kᵀ)) V
  void write_output(S* o, int64_t stride) {
    const MesanetSizes& n = systems.n;
    const int64_t c = systems.c;
    delta::lower_products(c, n.key_dim, S(1), x, systems.keys, false, pairs);
    mesa::weigh(c, systems.weights, pairs, pairs);
    const bool has_state = static_cast<bool>(systems.start);
    if (has_state) {
      for (int64_t i = 0; i < c; ++i) {
        delta::scale_row(n.key_dim, systems.decays.start[i], x + i * n.key_dim, read + i * n.key_dim);
      }
      gemm_serial<S>(false, false, c, n.value_dim, n.key_dim, S(1), read, n.key_dim, systems.start.values, n.value_dim,
                     false, o, stride);
    }
    delta::multiply_lower(c, n.value_dim, pairs, systems.values, has_state, o, stride);
  }

  void write_residual(S* residual, int64_t stride) {
    const int64_t dk = systems.n.key_dim;
    systems.apply(x, read);
    for (int64_t i = 0; i < systems.c; ++i) {
      const S* b = q + i * dk;
      const S length = std::sqrt(dot_row(dk, b, b));
      delta::add_row(dk, S(-1), b, read + i * dk);
      const S left = std::sqrt(dot_row(dk, read + i * dk, read + i * dk));
      residual[i * stride] = length > S(0) ? left / length : S(0);
    }
  }
};

template <class S>
void forward_head(const MesanetForward& a, const MesanetSizes& n, int64_t row, int64_t head, S* scratch) {
  ScratchParts<S> parts(scratch);
  MesanetForwardParts<S> f(parts, n, a.grid.longest);
  const HeadInputs<S> in(a, n, head);
  mesa::fill_lambda(a.rule, n.key_dim, a.lambda_raw.as<S>() + head * n.key_dim, f.systems.lambda);
  const bool carries = a.keys.defined();
  const int64_t at = row * n.heads + head;
  const Memory<S> home =
      carries ? Memory<S>{a.keys.as<S>() + at * n.keys(), a.values.as<S>() + at * n.values()} : f.own;
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  const int64_t* rows = a.grid.rows.as<int64_t>();
  const auto begins = [&](const DeltaChunk& chunk) { return doc_start[chunk.token] == chunk.token - row * n.length; };
  for (int64_t i = rows[row]; i < rows[row + 1]; ++i) {
    const DeltaChunk chunk = delta::chunk_at(a.grid, i);
    f.systems.enter(in, chunk, begins(chunk) ? Memory<S>{} : home);
    f.systems.fill_weights();
    const int64_t key_at = chunk.token * in.key_stride + head * n.key_dim;
    delta::gather_rows(chunk.length, n.key_dim, in.q + chunk.token * in.key_stride, in.key_stride, S(1), f.q);
    f.systems.solve(a.rule, f.q, f.x);
    for (int64_t t = 0; a.x.defined() && t < chunk.length; ++t) {
      std::copy_n(f.x + t * n.key_dim, n.key_dim, a.x.as<S>() + key_at + t * in.key_stride);
    }
    f.write_output(a.o.as<S>() + chunk.token * in.value_stride + head * n.value_dim, in.value_stride);
    if (a.residual.defined()) {
      f.write_residual(a.residual.as<S>() + chunk.token * in.gate_stride + head, in.gate_stride);
    }
    const bool is_last = i + 1 == rows[row + 1];
    if (is_last ? carries : !begins(delta::chunk_at(a.grid, i + 1))) { f.systems.advance(home); }
  }
}

/// out [columns] = row [rows] matrix [rows, columns], several vectors of columns together, since sums over rows are
/// chains of dependent multiply-adds.
template <class S> void multiply_row(int64_t rows, int64_t columns, const S* row, const S* matrix, S* out) {
  constexpr int64_t w = Vec<S>::width;
  int64_t c = 0;
  for (; c + 4 * w <= columns; c += 4 * w) {
    Vec<S> total[4] = {Vec<S>(S(0)), Vec<S>(S(0)), Vec<S>(S(0)), Vec<S>(S(0))};
    for (int64_t a = 0; a < rows; ++a) {
      const Vec<S> factor(row[a]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) { total[i] = fma(factor, load(matrix + a * columns + c + i * w), total[i]); }
    }
    for (int i = 0; i < 4; ++i) { store(out + c + i * w, total[i]); }
  }
  for (; c < columns; c += w) {
    const int lanes = static_cast<int>(std::min(w, columns - c));
    Vec<S> total(S(0));
    for (int64_t a = 0; a < rows; ++a) { total = fma(Vec<S>(row[a]), load(matrix + a * columns + c, lanes), total); }
    store(out + c, total, lanes);
  }
}

/// memory [rows, columns] = alpha memory + beta keyᵀ value.
template <class S>
void write_token(int64_t rows, int64_t columns, S alpha, S beta, const S* key, const S* value, S* memory) {
  for (int64_t a = 0; a < rows; ++a) {
    const Vec<S> factor(beta * key[a]);
    vector_loop<S>(columns, [&](int64_t c, auto lanes) {
      S* m = memory + a * columns + c;
      store(m, fma(factor, load(value + c, lanes), Vec<S>(alpha) * load(m, lanes)), lanes);
    });
  }
}

template <class S> struct Step {
  mesa::ConjugateGradients<S> gradients;
  mesa::Cholesky<S> cholesky;
  S *lambda, *x;  // [dk]

  Step(ScratchParts<S>& parts, const MesanetSizes& n)
      : gradients(parts, 1, n.key_dim),
        cholesky(parts, n.key_dim),
        lambda(parts.take(n.key_dim)),
        x(parts.take(n.key_dim)) {}
};

template <class S>
void steps_of_head(const MesanetSteps& a, const MesanetSizes& n, int64_t row, int64_t head, S* scratch) {
  ScratchParts<S> parts(scratch);
  Step<S> step(parts, n);
  const HeadInputs<S> in(a, n, head);
  const int64_t dk = n.key_dim, dv = n.value_dim;
  mesa::fill_lambda(a.rule, dk, a.lambda_raw.as<S>() + head * dk, step.lambda);
  S *keys = a.keys.as<S>() + (row * n.heads + head) * n.keys(),
    *values = a.values.as<S>() + (row * n.heads + head) * n.values();
  for (int64_t t = 0; t < n.length; ++t) {
    const int64_t i = row * n.length + t;
    if (a.doc_start.as<int32_t>()[i] == t) {
      std::fill_n(keys, n.keys(), S(0));
      std::fill_n(values, n.values(), S(0));
    }
    const S *q = in.q + i * in.key_stride, *k = in.k + i * in.key_stride;
    const S alpha = std::exp(log_logistic(in.a[i * in.gate_stride]));
    const S beta = mesa::logistic(in.b[i * in.gate_stride]);
    write_token(dk, dk, alpha, beta, k, k, keys);
    write_token(dk, dv, alpha, beta, k, in.v + i * in.value_stride, values);
    if (a.rule.exact) {
      step.cholesky.solve(keys, step.lambda, q, step.x);
    } else {
      step.gradients.solve(1, a.rule, q, step.x, [&](const S* p, S* product) {
        multiply_row(dk, dk, p, keys, product);
        for (int64_t c = 0; c < dk; ++c) { product[c] += p[c] * step.lambda[c]; }
      });
    }
    multiply_row(dk, dv, step.x, values, a.o.as<S>() + i * in.value_stride + head * dv);
  }
}

}  // namespace

void run(Stream&, const MesanetForward& a, const MesanetForwardScratch& scratch) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const MesanetSizes n(a.k, a.v);
    for_tasks(n.batch * n.heads, scratch.work.size(0), [&](int64_t task, int64_t slot) {
      forward_head<S>(a, n, task / n.heads, task % n.heads, scratch.work.as<S>() + slot * scratch.work.size(1));
    });
  });
}

void run(Stream&, const MesanetSteps& a, const MesanetStepsScratch& scratch) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const MesanetSizes n(a.k, a.v);
    for_tasks(n.batch * n.heads, scratch.work.size(0), [&](int64_t task, int64_t slot) {
      steps_of_head<S>(a, n, task / n.heads, task % n.heads, scratch.work.as<S>() + slot * scratch.work.size(1));
    });
  });
}

}  // namespace cpu

MesanetStepsScratch plan(Workspace& workspace, const MesanetSteps& args) {
  const int64_t elements = cpu::elements_of<cpu::Step<float>>(MesanetSizes(args.k.size(3), args.v.size(3)));
  return {.work = mesanet_work(workspace, args.k.size(0) * args.k.size(2), 0, elements, sum_dtype(args.v.dtype))};
}
HEBB_KERNEL_PLANNED(MesanetSteps)

MesanetForwardScratch plan(Workspace& workspace, const MesanetForward& args) {
  const Shape &k = args.k.shape, &v = args.v.shape;
  const DType dtype = sum_dtype(args.v.dtype);
  const MesanetSizes sizes(k[3], v[3]);
  const int64_t elements = cpu::elements_of<cpu::MesanetForwardParts<float>>(sizes, args.grid.longest);
  MesanetForwardScratch scratch;
  scratch.work = mesanet_work(workspace, k[0] * k[2], args.grid.chunks.size(0) * k[2], elements, dtype);
  if (workspace.on_gpu()) {
    scratch.key_starts = mesanet_starts(workspace, args.grid, args.k, k[3], dtype);
    scratch.value_starts = mesanet_starts(workspace, args.grid, args.k, v[3], dtype);
  }
  return scratch;
}
HEBB_KERNEL_PLANNED(MesanetForward)

}  // namespace hebb
