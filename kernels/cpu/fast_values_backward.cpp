#include "kernels/cpu/fast_keys.h"

namespace hebb::cpu {
namespace {

template <class S> struct ValuesBackward {
  const FastValuesBackward& a;
  int64_t dv, entries;

  const S* row(int64_t g) const {
    return a.rows.defined() ? a.rows.as<S>() + a.readers.local.as<int32_t>()[g] * dv
                            : a.values.as<S>() + a.lookup.slots.as<int32_t>()[g] * dv;
  }
  /// Gradient of what the update made of the row of entry g; null where no later chunk read it.
  const S* d_next(int64_t g) const {
    const int32_t at = a.at.as<int32_t>()[a.readers.local.as<int32_t>()[g]];
    return at < 0 ? nullptr : a.adjoint.as<S>() + at * dv;
  }
  S step(int64_t g) const {
    const int32_t* starts = a.readers.starts.as<int32_t>() + a.readers.local.as<int32_t>()[g];
    return S(a.step) / S(starts[1] - starts[0]);
  }

  void token(int64_t t) const {
    const S *d_out = a.d_out.as<S>() + t * dv, *weights = a.lookup.weights.as<S>();
    S *d_vh = a.d_vh.as<S>() + a.chunk.local(t) * dv, *d_weights = a.d_weights.as<S>();
    std::copy_n(d_out, dv, d_vh);
    const int64_t target = a.through ? a.pairs.targets.as<int32_t>()[t] : -1;
    if (target < 0) {
      read(t, d_vh);
      return;
    }
    const S w = a.pairs.w.defined() ? a.pairs.w.as<S>()[t] : S(1);
    const S *v = a.pairs.v.as<S>() + target * dv, *vh = a.vh.as<S>() + t * dv;
    S *d_v = a.d_v.as<S>() + target * dv, d_w = 0;
    // U = sum_j a_j h_j is never formed: each of its terms goes where U goes.
    for (int64_t g = t * entries; g < (t + 1) * entries; ++g) {
      const S* d = d_next(g);
      if (d == nullptr) {
        d_weights[g] = S(0);
        continue;
      }
      const S h = step(g), push = w * weights[g] * h;
      const S inner = h * lane_sum<S>(dv, [&](int64_t i) { return d[i] * (v[i] - vh[i]); });
      d_w += weights[g] * inner;
      d_weights[g] = w * inner;
      for (int64_t i = 0; i < dv; ++i) {
        d_v[i] += push * d[i];
        d_vh[i] -= push * d[i];
      }
    }
    for (int64_t g = t * entries; g < (t + 1) * entries; ++g) {
      d_weights[g] += dot(dv, row(g), d_vh);
    }
    if (a.d_w.defined()) {
      a.d_w.as<S>()[t] += d_w;
    }
  }
  void read(int64_t t, const S* d_vh) const {
    for (int64_t g = t * entries; g < (t + 1) * entries; ++g) {
      a.d_weights.as<S>()[g] = dot(dv, row(g), d_vh);
    }
  }

  /// dV of slot number u of the chunk; slots that no later chunk read get a fresh row.
  void slot(int64_t u, int32_t place, bool fresh) const {
    S* d = a.adjoint.as<S>() + place * dv;
    if (fresh) {
      std::fill(d, d + dv, S(0));
    }
    const int32_t* starts = a.readers.starts.as<int32_t>();
    for (int64_t i = starts[u]; i < starts[u + 1]; ++i) {
      const int64_t g = a.readers.readers.as<int32_t>()[i];
      const S weight = a.lookup.weights.as<S>()[g];
      const S* d_vh = a.d_vh.as<S>() + a.chunk.local(g / entries) * dv;
      for (int64_t c = 0; c < dv; ++c) {
        d[c] += weight * d_vh[c];
      }
    }
  }
};

template <class S> void values_backward(const FastValuesBackward& a) {
  const ValuesBackward<S> b{a, a.values.size(1), a.lookup.weights.numel() / a.lookup.weights.size(0)};
  const int64_t unique = a.through ? a.readers.count.as<int32_t>()[0] : 0;
  const int32_t* slots = a.readers.slots.as<int32_t>();
  int32_t *at = a.at.as<int32_t>(), *place = a.place.as<int32_t>();
  for (int64_t u = 0; u < unique; ++u) {
    at[u] = place[slots[u]] - 1;
  }
  each_token(a.chunk, [&](int64_t t) { b.token(t); });
  if (!a.earlier) {
    return;
  }
  for (int64_t u = 0; u < unique; ++u) {
    if (at[u] < 0) {
      place[slots[u]] = ++a.used.as<int32_t>()[0];
    }
  }
  parallel_for(unique, 4, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      b.slot(u, place[slots[u]] - 1, at[u] < 0);
    }
  });
}

}  // namespace

void run(Stream&, const FastValuesBackward& a) {
  dispatch_real(a.values.dtype, [&](auto zero) { values_backward<decltype(zero)>(a); });
}

}  // namespace hebb::cpu
