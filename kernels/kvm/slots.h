#pragma once
// The state slots of one kv head of kvm: memory keys, sums, and what is read of them.
#include <algorithm>
#include <cmath>

#include "kernels/common/formulas.h"
#include "kernels/kvm/kvm.h"

namespace hebb::cpu {

/// LayerNorm with weight and bias over `width` channels.
template <class S> struct KvmNorm {
  const S *weight, *bias;
  int64_t width;
  S eps;

  struct Statistics {
    S mean, rstd;
  };
  Statistics statistics(const S* x) const {
    const S n = static_cast<S>(width);
    const S mean = lane_sum<S>(width, [&](int64_t c) { return x[c]; }) / n;
    const S var = lane_sum<S>(width, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); }) / n;
    return {mean, S(1) / std::sqrt(var + eps)};
  }
  void forward(const S* x, S* y) const {
    const Statistics s = statistics(x);
    for (int64_t c = 0; c < width; ++c) { y[c] = (x[c] - s.mean) * s.rstd * weight[c] + bias[c]; }
  }
  /// d holds d_y on entry, d_x on return; adds to d_weight and d_bias.
  void backward(const S* x, S* d, S* d_weight, S* d_bias) const {
    const Statistics s = statistics(x);
    const S n = static_cast<S>(width);
    for (int64_t c = 0; c < width; ++c) {
      d_weight[c] += d[c] * (x[c] - s.mean) * s.rstd;
      d_bias[c] += d[c];
      d[c] *= weight[c];
    }
    const S mean = lane_sum<S>(width, [&](int64_t c) { return d[c]; }) / n;
    const S along = lane_sum<S>(width, [&](int64_t c) { return d[c] * (x[c] - s.mean); }) * s.rstd / n;
    for (int64_t c = 0; c < width; ++c) { d[c] = s.rstd * (d[c] - mean - (x[c] - s.mean) * s.rstd * along); }
  }
};

/// Copies k with its rotary channels cleared: what the memory key is the norm of.
template <class S> inline void kvm_clear_rotary(const KvmRule& rule, int64_t width, const S* k, S* z) {
  std::fill_n(z, rule.rotary, S(0));
  std::copy(k + rule.rotary, k + width, z + rule.rotary);
}

/// The slots of one row of the batch and kv head.
template <class S> struct KvmHeadDictionary {
  S *keys, *values, *radii;
  int32_t* counts;
  S *key_hats, *value_hats;
  int64_t key_dim, value_dim;

  S* key(int64_t r) const { return keys + r * key_dim; }
  S* value(int64_t r) const { return values + r * value_dim; }
  S* key_hat(int64_t r) const { return key_hats + r * key_dim; }
  S* value_hat(int64_t r) const { return value_hats + r * value_dim; }

  /// Makes slot r of a token's memory key and value times their gates, on entry of `chunk`.
  void found(const KvmRule& rule, int64_t r, const S* memory_key, const S* v, S key_gate, S value_gate,
             int64_t chunk) const {
    for (int64_t c = 0; c < key_dim; ++c) { key(r)[c] = key_gate * memory_key[c]; }
    for (int64_t c = 0; c < value_dim; ++c) { value(r)[c] = value_gate * v[c]; }
    radii[r] = std::sqrt(dot(value_dim, value(r), value(r)));
    counts[r] = rule.value_norm == KvmValueNorm::updates ? static_cast<int32_t>(chunk) : 0;
  }
  /// Adds a token to slot r.
  void merge(const KvmRule& rule, int64_t r, const S* memory_key, const S* v, S key_gate, S value_gate) const {
    for (int64_t c = 0; c < key_dim; ++c) { key(r)[c] += key_gate * memory_key[c]; }
    for (int64_t c = 0; c < value_dim; ++c) { value(r)[c] += value_gate * v[c]; }
    if (rule.value_norm == KvmValueNorm::mean) { ++counts[r]; }
  }
  /// Factor from the sum of slot r's values to what queries of `chunk` read.
  S value_scale(const KvmRule& rule, int64_t r, int64_t chunk) const {
    switch (rule.value_norm) {
      case KvmValueNorm::radius: return radii[r] / clamped_norm(r);
      case KvmValueNorm::mean: return S(1) / static_cast<S>(1 + counts[r]);
      case KvmValueNorm::updates: return S(1) / static_cast<S>(1 + chunk - counts[r]);
    }
    return S(1);
  }
  S clamped_norm(int64_t r) const {
    return std::max(std::sqrt(dot(value_dim, value(r), value(r))), static_cast<S>(kTiny));
  }
  void read_value(const KvmRule& rule, int64_t r, int64_t chunk) const {
    const S scale = value_scale(rule, r, chunk);
    for (int64_t c = 0; c < value_dim; ++c) { value_hat(r)[c] = scale * value(r)[c]; }
  }
  void read_slot(const KvmRule& rule, const KvmNorm<S>& norm, int64_t r, int64_t chunk) const {
    norm.forward(key(r), key_hat(r));
    read_value(rule, r, chunk);
  }

  static constexpr double kTiny = 1e-12;
};

template <class S> KvmHeadDictionary<S> kvm_head_dictionary(const KvmSlots& slots, int64_t unit) {
  const int64_t room = slots.keys.size(2), d = slots.keys.size(3), dv = slots.values.size(3), first = unit * room;
  return {slots.keys.as<S>() + first * d,
          slots.values.as<S>() + first * dv,
          slots.radii.as<S>() + first,
          slots.counts.defined() ? slots.counts.as<int32_t>() + first : nullptr,
          slots.key_hats.as<S>() + first * d,
          slots.value_hats.as<S>() + first * dv,
          d,
          dv};
}

}  // namespace hebb::cpu
