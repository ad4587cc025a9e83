#include "kernels/gated_delta/scratch.h"

#include <fmt/core.h>

#include "kernels/gated_delta/chunk_scan.h"

namespace hebb {

Cores gated_delta_cores(const Tensor& k, const Tensor& v, int64_t longest, bool predicts,
                        const std::vector<Tensor>& tensors) {
  const int64_t dk = k.size(3), dv = v.size(3), needed = gated_delta_shared_bytes(dk);
  if (v.dtype != DType::bf16) { return {}; }
  if (dk > 128 || dk % 8 != 0 || dv % 8 != 0) {
    return {false,
            fmt::format("keys of {:d} and values of {:d} channels (tensor cores take multiples of 8, keys up to 128)",
                        dk, dv)};
  }
  if (longest > 64) { return {false, fmt::format("chunks of {:d} tokens (tensor cores take up to 64)", longest)}; }
  if (predicts) { return {false, "the predictions of each token are asked for"}; }
  if (needed > block_shared_bytes()) {
    return {false, fmt::format("keys of {:d} channels: {}", dk, shared_memory_obstacle(needed))};
  }
  if (!all_aligned(tensors)) { return {false, kAddressObstacle}; }
  return {true, ""};
}

GatedDeltaForwardScratch plan(Workspace& workspace, const GatedDeltaForward& args) {
  const int64_t slots = scratch_slots(workspace.stream(), args.v.size(0) * args.v.size(2));
  const int64_t elements = cpu::delta::scan_elements(DeltaSizes(args.k, args.v), args.grid.longest);
  const Cores cores =
      gated_delta_cores(args.k, args.v, args.grid.longest, args.prediction.defined(), {args.q, args.k, args.v, args.o});
  return {.work = workspace.tensor({slots, elements}, sum_dtype(args.v.dtype), "delta rule scratch"),
          .on_tensor_cores = takes_tensor_cores(workspace.stream(), "delta rule", cores)};
}
HEBB_KERNEL_PLANNED(GatedDeltaForward)

namespace cpu {
namespace {

using delta::ChunkScan;
using delta::HeadInputs;

/// o = diag(e^gam) Q S + P delta, P_ij = D_ij (q_i . k_j), j <= i.
template <class S> void write_output(const ChunkScan<S>& scan, const DeltaSizes& n, int64_t c, S* o, int64_t stride) {
  const int64_t dv = n.value_dim;
  S* p = scan.products + c * c;
  for (int64_t i = 0; i < c; ++i) {
    const S* d = scan.decays.table + i * c;
    delta::lower_row(i, c, p + i * c,
                     [&](int64_t j, auto lanes) { return load(p + i * c + j, lanes) * load(d + j, lanes); });
  }
  if (scan.has_state) {
    for (int64_t i = 0; i < c; ++i) {
      delta::scale_row(dv, scan.decays.start[i], scan.read + (c + i) * dv, o + i * stride);
    }
  }
  delta::multiply_lower(c, dv, p, scan.delta, scan.has_state, o, stride);
}

/// p_i = e^gam_{i-1} k_i S + sum_{j<i} e^(gam_{i-1} - gam_j) (k_i . k_j) delta_j (docs/layers/ham.md, Prediction in
/// chunks); weights [c, c] is scratch.
template <class S>
void write_prediction(const ChunkScan<S>& scan, const DeltaSizes& n, int64_t c, S* weights, S* p, int64_t stride) {
  const int64_t dv = n.value_dim;
  std::fill_n(weights, c, S(0));
  for (int64_t i = 1; i < c; ++i) {
    const S *d = scan.decays.table + (i - 1) * c, *kk = scan.products + i * c;
    delta::lower_row(i - 1, c, weights + i * c,
                     [&](int64_t j, auto lanes) { return load(d + j, lanes) * load(kk + j, lanes); });
  }
  for (int64_t i = 0; scan.has_state && i < c; ++i) {
    delta::scale_row(dv, i > 0 ? scan.decays.start[i - 1] : S(1), scan.read + i * dv, p + i * stride);
  }
  delta::multiply_lower(c, dv, weights, scan.delta, scan.has_state, p, stride);
}

template <class S>
void forward_head(const GatedDeltaForward& a, const DeltaSizes& n, int64_t row, int64_t head, S* scratch) {
  ScratchParts<S> parts(scratch);
  ChunkScan<S> scan(parts, n, a.grid.longest);
  S* weights = parts.take(a.grid.longest * a.grid.longest);
  const HeadInputs<S> in(a, n, head);
  const bool carries = a.state.defined();
  scan.begin_row(carries ? a.state.as<S>() + (row * n.value_heads + head) * n.state() : nullptr,
                 a.initial_state.defined() ? a.initial_state.as<S>() + head * n.state() : nullptr);
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  const int64_t *rows = a.grid.rows.as<int64_t>(), stride = n.value_heads * n.value_dim;
  const auto begins = [&](const DeltaChunk& chunk) { return doc_start[chunk.token] == chunk.token - row * n.length; };
  for (int64_t i = rows[row]; i < rows[row + 1]; ++i) {
    const DeltaChunk chunk = delta::chunk_at(a.grid, i);
    scan.enter(begins(chunk));
    const int64_t later = i + 1 < rows[row + 1] ? delta::chunk_at(a.grid, i + 1).length : 0,
                  next = chunk.token + chunk.length;
    delta::prefetch_rows(later, n.key_dim, in.q + next * in.key_stride, in.key_stride);
    delta::prefetch_rows(later, n.key_dim, in.k + next * in.key_stride, in.key_stride);
    delta::prefetch_rows(later, n.value_dim, in.v + next * in.value_stride, in.value_stride);
    scan.solve(in, chunk, static_cast<S>(a.scale), !a.additive, true, scan.own_errors);
    const int64_t at = chunk.token * stride + head * n.value_dim;
    if (a.prediction.defined()) { write_prediction(scan, n, chunk.length, weights, a.prediction.as<S>() + at, stride); }
    write_output(scan, n, chunk.length, a.o.as<S>() + at, stride);
    const bool is_last = i + 1 == rows[row + 1];
    if (is_last ? carries : !begins(delta::chunk_at(a.grid, i + 1))) { scan.advance(chunk.length, scan.state); }
  }
}

/// What one token brings to one value head.
template <class S> struct TokenInputs {
  const S *q, *k, *v;
  Vec<S> alpha, beta, scale, match;  // match = scale q . k
  bool additive;
};

/// `vectors` vectors of columns from c, the last with `lanes` elements: together, since the sums over
/// rows are chains of dependent multiply-adds.
template <int vectors, class S, class Lanes>
void step_columns(const TokenInputs<S>& in, int64_t dk, int64_t dv, int64_t c, Lanes lanes, S* state, S* prediction,
                  S* o) {
  constexpr int w = Vec<S>::width;
  const auto read = [&](const S* p, int i) { return i + 1 < vectors ? load(p + i * w) : load(p + i * w, lanes); };
  const auto write = [&](S* p, int i, Vec<S> x) { i + 1 < vectors ? store(p + i * w, x) : store(p + i * w, x, lanes); };
  Vec<S> predicted[vectors], answer[vectors];
#pragma GCC unroll 4
  for (int i = 0; i < vectors; ++i) { predicted[i] = answer[i] = Vec<S>(S(0)); }
  for (int64_t a = 0; a < dk; ++a) {
    const Vec<S> k(in.k[a]), q(in.q[a]);
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      const Vec<S> s = read(state + a * dv + c, i);
      predicted[i] = fma(k, s, predicted[i]);
      answer[i] = fma(q, s, answer[i]);
    }
  }
  Vec<S> written[vectors];
#pragma GCC unroll 4
  for (int i = 0; i < vectors; ++i) {
    const Vec<S> v = read(in.v + c, i);
    written[i] = in.beta * (in.additive ? v : v - in.alpha * predicted[i]);
    write(o + c, i, fma(in.match, written[i], in.alpha * answer[i] * in.scale));
    if (prediction != nullptr) { write(prediction + c, i, predicted[i]); }
  }
  for (int64_t a = 0; a < dk; ++a) {
    const Vec<S> k(in.k[a]);
#pragma GCC unroll 4
    for (int i = 0; i < vectors; ++i) {
      write(state + a * dv + c, i, fma(k, written[i], in.alpha * read(state + a * dv + c, i)));
    }
  }
}

/// One token: o and, where wanted, the prediction, from the state before it.
template <class S> void step(const TokenInputs<S>& in, int64_t dk, int64_t dv, S* state, S* prediction, S* o) {
  constexpr int64_t w = Vec<S>::width;
  int64_t c = 0;
  for (; c + 4 * w <= dv; c += 4 * w) { step_columns<4>(in, dk, dv, c, AllLanes{}, state, prediction, o); }
  for (; c < dv; c += w) {
    step_columns<1>(in, dk, dv, c, static_cast<int>(std::min(w, dv - c)), state, prediction, o);
  }
}

template <class S> void steps_of_head(const GatedDeltaSteps& a, const DeltaSizes& n, int64_t row, int64_t head) {
  const HeadInputs<S> in(a, n, head);
  const int32_t* doc_start = a.doc_start.as<int32_t>();
  S* state = a.state.as<S>() + (row * n.value_heads + head) * n.state();
  for (int64_t t = 0; t < n.length; ++t) {
    const int64_t i = row * n.length + t, at = i * in.value_stride + head * n.value_dim;
    if (doc_start[i] == t) {
      if (a.initial_state.defined()) {
        std::copy_n(a.initial_state.as<S>() + head * n.state(), n.state(), state);
      } else {
        std::fill_n(state, n.state(), S(0));
      }
    }
    const S *q = in.q + i * in.key_stride, *k = in.k + i * in.key_stride, scale = static_cast<S>(a.scale);
    const TokenInputs<S> token{q,
                               k,
                               in.v + i * in.value_stride,
                               std::exp(in.g[i * in.gate_stride]),
                               in.beta[i * in.gate_stride],
                               scale,
                               scale * dot_row(n.key_dim, q, k),
                               a.additive};
    step(token, n.key_dim, n.value_dim, state, a.prediction.defined() ? a.prediction.as<S>() + at : nullptr,
         a.o.as<S>() + at);
  }
}

}  // namespace

void run(Stream&, const GatedDeltaForward& a, const GatedDeltaForwardScratch& scratch) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const DeltaSizes n(a.k, a.v);
    for_tasks(n.batch * n.value_heads, scratch.work.size(0), [&](int64_t task, int64_t slot) {
      forward_head<S>(a, n, task / n.value_heads, task % n.value_heads,
                      scratch.work.as<S>() + slot * scratch.work.size(1));
    });
  });
}

void run(Stream&, const GatedDeltaSteps& a) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const DeltaSizes n(a.k, a.v);
    const int64_t grain = std::max<int64_t>(1, 32768 / (n.state() * n.length));  // waking a thread costs microseconds
    parallel_each(n.batch * n.value_heads, grain,
                  [&](int64_t task) { steps_of_head<S>(a, n, task / n.value_heads, task % n.value_heads); });
  });
}

}  // namespace cpu
}  // namespace hebb
