#include "kernels/slot_select/slot_select.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/slot_select/slot_hash_set.h"

namespace hebb::cpu {
namespace {

using slot_select::kGroup;

template <class S> inline S length(int64_t k, const S* s) {
  S squares = 0;
  for (int64_t j = 0; j < k; ++j) { squares += s[j] * s[j]; }
  return std::sqrt(squares);
}

constexpr double kLengthEps = 1e-12;

template <class S> void activate(const SlotWeights& a, S* w, int64_t k) {
  if (a.activation == SlotActivation::softmax) {
    const S scale = static_cast<S>(a.scale), top = *std::max_element(w, w + k);
    Vec<S> total(S(0));
    vector_loop<S>(k, [&](int64_t j, auto lanes) {
      const Vec<S> e = exp((load(w + j, lanes) - Vec<S>(top)) * Vec<S>(scale));
      store(w + j, e, lanes);
      total += fill_behind(e, lanes, S(0));
    });
    const S inverse = S(1) / sum(total);
    vector_loop<S>(k, [&](int64_t j, auto lanes) { store(w + j, load(w + j, lanes) * Vec<S>(inverse), lanes); });
  } else if (a.activation == SlotActivation::l2) {
    const S divisor = length(k, w) + static_cast<S>(kLengthEps);
    for (int64_t j = 0; j < k; ++j) { w[j] /= divisor; }
  }
}

/// Through one head's activation, from its sums over the selected scores; norm = |s| (l2 only).
template <class S> struct ActivationGradient {
  S factor = 1, shift = 0;
  bool times_weight = false;

  ActivationGradient(const SlotWeightsBackward& a, const S* w, const S* dw, int64_t k, S norm) {
    S along = 0;
    for (int64_t j = 0; j < k; ++j) { along += w[j] * dw[j]; }
    if (a.activation == SlotActivation::softmax) {
      // scale w (dw - w . dw): exactly 0 where one slot has all of the weight.
      factor = static_cast<S>(a.scale);
      shift = -along;
      times_weight = true;
    } else if (a.activation == SlotActivation::l2) {
      // w = s / r, r = |s| + eps: ds = dw / r - w (w . dw) / |s|; |s| is taken as constant at 0.
      factor = S(1) / (norm + static_cast<S>(kLengthEps));
      shift = norm > S(0) ? -along / norm : S(0);
    }
  }
  S operator()(S w, S dw) const { return times_weight ? factor * w * (dw + shift) : factor * dw + shift * w; }
};

}  // namespace

// A load of what narrower stores have just written waits until they have left the processor's queue, and with it all
// that follows. So a group of heads is written first and read then.

void run(Stream&, const SlotSelect& a) {
  dispatch_real(a.scores.dtype, [&]<class S>(S) {
    const int64_t k = a.slots.size(2), n = a.scores.size(3);
    parallel_for(a.slots.numel() / k, kGroup, [&](int64_t begin, int64_t end) {
      static thread_local SlotSet<S> set;
      const S* scores = a.scores.as<S>();
      int32_t* slots = a.slots.as<int32_t>();
      for (int64_t first = begin; first < end; first += kGroup) {
        set.select(scores + first * 2 * n, std::min(kGroup, end - first), n, k, slots + first * k);
      }
    });
  });
}

void run(Stream&, const SlotWeights& a) {
  dispatch_real(a.scores.dtype, [&]<class S>(S) {
    const int64_t k = a.slots.size(2), n = a.scores.size(3);
    parallel_for(a.slots.numel() / k, kGroup, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kGroup) {
        const int64_t last = std::min(end, first + kGroup);
        for (int64_t i = first; i < last; ++i) {
          const S* scores = a.scores.as<S>() + i * 2 * n;
          const int32_t* slots = a.slots.as<int32_t>() + i * k;
          S* w = a.weights.as<S>() + i * k;
          for (int64_t j = 0; j < k; ++j) { w[j] = scores[slots[j] / n] + scores[n + slots[j] % n]; }
        }
        for (int64_t i = first; i < last; ++i) { activate(a, a.weights.as<S>() + i * k, k); }
      }
    });
  });
}

void run(Stream&, const SlotWeightsBackward& a) {
  dispatch_real(a.scores.dtype, [&]<class S>(S) {
    const int64_t k = a.slots.size(2), n = a.scores.size(3);
    parallel_each(a.slots.numel() / k, kGroup, [&](int64_t i) {
      const S *scores = a.scores.as<S>() + i * 2 * n, *w = a.weights.as<S>() + i * k, *dw = a.d_weights.as<S>() + i * k;
      const int32_t* slots = a.slots.as<int32_t>() + i * k;
      S* d_scores = a.d_scores.as<S>() + i * 2 * n;
      if (!a.accumulate) { std::fill_n(d_scores, 2 * n, S(0)); }
      S squares = 0;
      for (int64_t j = 0; a.activation == SlotActivation::l2 && j < k; ++j) {
        const S s = scores[slots[j] / n] + scores[n + slots[j] % n];
        squares += s * s;
      }
      const ActivationGradient<S> gradient(a, w, dw, k, std::sqrt(squares));
      for (int64_t j = 0; j < k; ++j) {
        const S d = gradient(w[j], dw[j]);
        d_scores[slots[j] / n] += d;
        d_scores[n + slots[j] % n] += d;
      }
    });
  });
}

}  // namespace hebb::cpu
