#pragma once
// Softmax readout of [dictionary slots, biased by the logarithms of their counts | keys of the own chunk], which ovq
// and vq share (docs/layers/ovq.md, Forward; docs/layers/vq.md, Linear form).
#include <algorithm>
#include <cmath>

#include "kernels/common/cpu/math.h"
#include "kernels/gemm/gemm_cpu.h"

namespace hebb::cpu {

/// n slots of a dictionary, and the keys and values of the own chunk.
template <class S> struct ReadSource {
  const S *keys, *values, *log_counts;
  int64_t n;
  const S* own_keys;
  int64_t own_key_stride;
  const S* own_values;
  int64_t own_value_stride;
  int64_t key_dim, value_dim;
};

/// `count` queries of one head. lse: log-sum-exps, or null.
template <class S> struct ReadQueries {
  const S* q;
  int64_t q_stride;
  S* o;
  int64_t o_stride;
  S* lse;
  int64_t lse_stride;
  int64_t count;
};

/// Logits of n dictionary slots and `own` of `visible` keys to probabilities; returns the log-sum-exp.
template <class S> S read_softmax(const S* log_counts, S* x, int64_t n, int64_t own, int64_t visible) {
  for (int64_t r = 0; r < n; ++r) { x[r] += log_counts[r]; }
  S largest = x[0];
  for (int64_t r = 1; r < n + own; ++r) { largest = std::max(largest, x[r]); }
  for (int64_t r = 0; r < n + own; ++r) { x[r] = exp_(x[r] - largest); }
  const S sum = lane_sum<S>(n + own, [&](int64_t r) { return x[r]; });
  const S scale = S(1) / sum;
  for (int64_t r = 0; r < n + own; ++r) { x[r] *= scale; }
  std::fill(x + n + own, x + n + visible, S(0));
  return largest + std::log(sum);
}

/// Query i sees the dictionary and the first `own` + i own keys. logits [count, stride] is scratch.
template <class S>
void read_dictionary(const ReadSource<S>& from, const ReadQueries<S>& to, int64_t own, S* logits, int64_t stride) {
  const int64_t n = from.n, d = from.key_dim, dv = from.value_dim, visible = own + to.count - 1;
  if (n > 0) {
    gemm_serial<S>(false, true, to.count, n, d, S(1), to.q, to.q_stride, from.keys, d, false, logits, stride);
  }
  if (visible > 0) {
    gemm_serial<S>(false, true, to.count, visible, d, S(1), to.q, to.q_stride, from.own_keys, from.own_key_stride,
                   false, logits + n, stride);
  }
  for (int64_t i = 0; i < to.count; ++i) {
    const S lse = read_softmax(from.log_counts, logits + i * stride, n, own + i, visible);
    if (to.lse != nullptr) { to.lse[i * to.lse_stride] = lse; }
  }
  if (visible > 0) {
    gemm_serial<S>(false, false, to.count, dv, visible, S(1), logits + n, stride, from.own_values,
                   from.own_value_stride, false, to.o, to.o_stride);
  }
  if (n > 0) {
    gemm_serial<S>(false, false, to.count, dv, n, S(1), logits, stride, from.values, dv, visible > 0, to.o,
                   to.o_stride);
  }
}

}  // namespace hebb::cpu
