#pragma once
#include "kernels/gated_delta/chunk.h"

namespace hebb::cpu::delta {

/// The forward scan over the chunks of one value head of one row: prediction errors and state.
template <class S> class ChunkScan {
 public:
  ChunkScan(ScratchParts<S>& parts, const DeltaSizes& sizes, int64_t longest)
      : decays(parts, longest),
        beta(parts.take(longest)),
        kq(parts.take(2 * longest * sizes.key_dim)),
        products(parts.take(2 * longest * longest)),
        lower(parts.take(longest * longest)),
        read(parts.take(2 * longest * sizes.value_dim)),
        own_errors(parts.take(longest * sizes.value_dim)),
        delta(parts.take(longest * sizes.value_dim)),
        sizes_(sizes),
        own_state_(parts.take(sizes.state())) {}

  /// carried: the row's state in and out, or null; initial: the state before a document, or null (0).
  void begin_row(S* carried, const S* initial) {
    state = home_ = carried != nullptr ? carried : own_state_;
    initial_ = initial;
  }

  /// Sets the state before a chunk that a document begins with, or not.
  void enter(bool begins_document) {
    has_state = !begins_document || initial_ != nullptr;
    if (begins_document) { state = home_; }
    if (begins_document && initial_ != nullptr) { std::copy_n(initial_, sizes_.state(), state); }
  }

  /// KQ, its products with K and what it reads from the state, then E and delta = beta E:
  /// E_i + sum_{j<i} D_ij (k_i . k_j) beta_j E_j = v_i - e^gam_i k_i S. Without queries the halves of Q are left out.
  /// E goes to `errors` [c, dv]. Without `corrects` E = v.
  void solve(const HeadInputs<S>& in, const DeltaChunk& chunk, S scale, bool corrects, bool queries, S* errors) {
    const int64_t c = chunk.length, dk = sizes_.key_dim, dv = sizes_.value_dim;
    gather_rows(c, dk, in.k + chunk.token * in.key_stride, in.key_stride, S(1), kq);
    if (queries) { gather_rows(c, dk, in.q + chunk.token * in.key_stride, in.key_stride, scale, kq + c * dk); }
    gather(c, in.beta + chunk.token * in.gate_stride, in.gate_stride, beta);
    gather_rows(c, dv, in.v + chunk.token * in.value_stride, in.value_stride, S(1), errors);
    decays.load_gates(in.g + chunk.token * in.gate_stride, in.gate_stride, c);
    if (corrects) {
      correct(c, queries, errors);
    } else if (queries) {
      decays.fill_table(c);
      lower_products(c, dk, S(1), kq + c * dk, kq, false, products + c * c);
      if (has_state) {
        gemm_serial<S>(false, false, c, dv, dk, S(1), kq + c * dk, dk, state, dv, false, read + c * dv, dv);
      }
    }
    for (int64_t i = 0; i < c; ++i) { scale_row(dv, beta[i], errors + i * dv, delta + i * dv); }
  }

  /// next (may be state) = e^gam_last state + sum_i k_iᵀ e^(gam_last - gam_i) delta_i, from now on the
  /// state. Overwrites delta.
  void advance(int64_t c, S* next) {
    const int64_t dk = sizes_.key_dim, dv = sizes_.value_dim;
    for (int64_t i = 0; i < c; ++i) { scale_row(dv, decays.end[i], delta + i * dv, delta + i * dv); }
    if (has_state) { scale_row(sizes_.state(), decays.last, state, next); }
    gemm_serial<S>(true, false, dk, dv, c, S(1), kq, dk, delta, dv, has_state, next, dv);
    state = next;
  }

  Decays<S> decays;
  S* beta;                // [c]
  S* kq;                  // [2 c, dk]
  S* products;            // [2 c, c] KQ Kᵀ, lower triangles
  S* lower;               // [c, c]
  S* read;                // [2 c, dv] KQ S
  S *own_errors, *delta;  // [c, dv]
  S* state = nullptr;
  bool has_state = false;  // whether the state before the chunk is anything but 0

 private:
  /// Values v in `errors` to E.
  void correct(int64_t c, bool queries, S* errors) {
    const int64_t dk = sizes_.key_dim, dv = sizes_.value_dim, rows = queries ? 2 * c : c;
    decays.fill_table(c);
    if (queries) {
      pair_products(c, dk, kq, kq, products);
    } else {
      gemm_serial<S>(false, true, c, c, dk, S(1), kq, dk, kq, dk, false, products, c);
    }
    if (has_state) {
      gemm_serial<S>(false, false, rows, dv, dk, S(1), kq, dk, state, dv, false, read, dv);
      for (int64_t i = 0; i < c; ++i) { add_row(dv, -decays.start[i], read + i * dv, errors + i * dv); }
    }
    for (int64_t i = 1; i < c; ++i) {
      const S *d = decays.table + i * c, *kk = products + i * c;
      vector_loop<S>(i, [&](int64_t j, auto lanes) {
        store(lower + i * c + j, load(d + j, lanes) * load(kk + j, lanes) * load(beta + j, lanes), lanes);
      });
    }
    solve_lower(c, dv, lower, errors);
  }

  DeltaSizes sizes_;
  S *own_state_, *home_ = nullptr;
  const S* initial_ = nullptr;
};

/// Elements of a slot for a forward scan, counted as elements_of() does.
inline int64_t scan_elements(const DeltaSizes& sizes, int64_t longest) {
  ScratchParts<float> parts(nullptr);
  const ChunkScan<float> scan(parts, sizes, longest);
  parts.take(longest * longest);  // for predictions
  return parts.used();
}

}  // namespace hebb::cpu::delta
