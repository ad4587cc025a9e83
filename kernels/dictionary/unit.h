#pragma once
// A pass of ovq, kvm or vq over [B, T, ...]: its units, one row of the batch and kv head each, run in parallel.
#include <algorithm>

#include "core/parallel.h"
#include "core/tensor.h"

namespace hebb::cpu {

/// Sizes and place of a unit.
struct DictionaryUnit {
  int64_t length_, heads_, kv_heads_, d_, dv_, chunk_, row_, kv_head_;
  const int32_t* doc_start_;  // [T]

  template <class Args>
  DictionaryUnit(const Args& a, int64_t chunk, int64_t unit)
      : length_(a.q.size(1)),
        heads_(a.q.size(2)),
        kv_heads_(a.v.size(2)),
        d_(a.q.size(3)),
        dv_(a.v.size(3)),
        chunk_(chunk),
        row_(unit / kv_heads_),
        kv_head_(unit % kv_heads_),
        doc_start_(a.doc_start.template as<int32_t>() + row_ * length_) {}

  /// Index of token t of the row and the unit's kv head in [B, T, kv heads].
  int64_t kv_item(int64_t t) const { return (row_ * length_ + t) * kv_heads_ + kv_head_; }

  /// Zeroes the unit's part of `gradient` [B, T, kv heads, width], unless a pass adds to it or it is undefined.
  template <class S> void clear(const Tensor& gradient, int64_t width, bool accumulate) const {
    for (int64_t t = 0; gradient.defined() && !accumulate && t < length_; ++t) {
      std::fill_n(gradient.as<S>() + kv_item(t) * width, width, S(0));
    }
  }

  /// Calls f(first token, end) for the documents of the row.
  template <class F> void each_document(F&& f) const {
    for (int64_t t = 0, end = 0; t < length_; t = end) {
      while (end < length_ && doc_start_[end] == doc_start_[t]) { ++end; }
      f(t, end);
    }
  }
};

template <class Unit, class Args, class Scratch> void run_units(const Args& a, const Scratch& scratch) {
  parallel_each(a.v.size(0) * a.v.size(2), 1, [&](int64_t unit) { Unit(a, scratch, unit).run(); });
}

}  // namespace hebb::cpu
