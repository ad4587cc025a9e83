#include "kernels/ham/ham.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/parallel.h"
#include "kernels/common/cpu/simd.h"
#include "kernels/common/formulas.h"

namespace hebb::cpu {
namespace {

constexpr int64_t kTokens = 32;      // of a range
constexpr int64_t kElements = 4096;  // of a range

/// to = factor from, or += it.
template <class S> void put_row(int64_t n, S factor, const S* from, S* to, bool accumulate) {
  const Vec<S> f(factor);
  vector_loop<S>(n, [&](int64_t i, auto lanes) { put(to + i, f * load(from + i, lanes), lanes, accumulate); });
}

/// The head whose score counts: the first of equal ones.
template <class S> int64_t winning_head(const S* scores, int64_t heads, bool takes_max) {
  return (takes_max ? std::max_element(scores, scores + heads) : std::min_element(scores, scores + heads)) - scores;
}

}  // namespace

void run(Stream&, const PredictionScore& a) {
  dispatch_real(a.p.dtype, [&]<class S>(S) {
    const int64_t heads = a.p.size(1), dv = a.p.size(2);
    const S *p = a.p.as<S>(), *v = a.v.as<S>();
    S* score = a.score.as<S>();
    parallel_each(a.p.size(0), kTokens, [&](int64_t n) {
      for (int64_t h = 0; h < heads; ++h) {
        const S *ph = p + (n * heads + h) * dv, *vh = v + (n * heads + h) * dv;
        const S pp = dot_row(dv, ph, ph), vv = dot_row(dv, vh, vh), pv = dot_row(dv, ph, vh);
        const S e = S(1) - pv / (std::sqrt(pp) * std::sqrt(vv) + S(1e-6));
        const bool wins = h == 0 || (a.takes_max ? e > score[n] : e < score[n]);
        score[n] = wins ? e : score[n];
      }
    });
  });
}

void run(Stream&, const RouterInput& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t heads = a.p.size(1), dv = a.p.size(2), d = a.x.size(1), width = 2 * dv + d;
    parallel_each(a.p.size(0), kTokens, [&](int64_t n) {
      for (int64_t h = 0; h < heads; ++h) {
        S* y = a.y.as<S>() + (n * heads + h) * width;
        for (const Tensor* part : {&a.p, &a.v}) {
          const S* from = part->as<S>() + (n * heads + h) * dv;
          put_row(dv, S(1) / std::sqrt(dot_row(dv, from, from) + S(1e-6)), from, y, false);
          y += dv;
        }
        std::copy_n(a.x.as<S>() + n * d, d, y);
      }
    });
  });
}

void run(Stream&, const RouterInputBackward& a) {
  dispatch_real(a.d_y.dtype, [&]<class S>(S) {
    const int64_t heads = a.d_y.size(1), width = a.d_y.size(2), d = a.d_x.size(1);
    parallel_each(a.d_x.size(0), kTokens, [&](int64_t n) {
      for (int64_t h = 0; h < heads; ++h) {
        const S* from = a.d_y.as<S>() + (n * heads + h) * width + width - d;
        put_row(d, S(1), from, a.d_x.as<S>() + n * d, a.accumulate || h > 0);
      }
    });
  });
}

void run(Stream&, const Gelu& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    parallel_each(a.x.numel(), kElements,
                  [&](int64_t i) { a.y.as<S>()[i] = a.x.as<S>()[i] * normal_cdf(a.x.as<S>()[i]); });
  });
}

void run(Stream&, const GeluBackward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    parallel_each(a.x.numel(), kElements, [&](int64_t i) {
      const S x = a.x.as<S>()[i];
      const S d = a.d_y.as<S>()[i] * (normal_cdf(x) + x * kNormalPeak<S> * std::exp(S(-0.5) * x * x));
      put(a.d_x.as<S>()[i], d, a.accumulate);
    });
  });
}

void run(Stream&, const RouterScore& a) {
  dispatch_real(a.logits.dtype, [&]<class S>(S) {
    const int64_t heads = a.logits.numel() / a.score.numel();
    const S gamma = a.previous.defined() ? sigmoid(*a.eda_logit.as<S>()) : S(1);
    parallel_each(a.score.numel(), kTokens, [&](int64_t n) {
      const S* logits = a.logits.as<S>() + n * heads;
      const int64_t head = winning_head(logits, heads, a.takes_max);  // sigmoid is monotonic
      const S own = sigmoid(logits[head]);
      a.winner.as<int32_t>()[n] = static_cast<int32_t>(head);
      a.own.as<S>()[n] = own;
      a.score.as<S>()[n] = a.previous.defined() ? gamma * own + (S(1) - gamma) * a.previous.as<S>()[n] : own;
    });
  });
}

void run(Stream&, const RouterScoreBackward& a) {
  dispatch_real(a.d_score.dtype, [&]<class S>(S) {
    const int64_t tokens = a.d_score.numel(), heads = a.d_logits.defined() ? a.d_logits.numel() / tokens : 0;
    const bool averages = a.previous.defined();
    const S gamma = averages ? sigmoid(*a.eda_logit.as<S>()) : S(1);
    S d_gamma(0);
    for (int64_t n = 0; n < tokens; ++n) {
      const S d = a.d_score.as<S>()[n], own = a.own.as<S>()[n];
      for (int64_t h = 0; h < heads; ++h) {
        const S d_logit = h == a.winner.as<int32_t>()[n] ? d * gamma * own * (S(1) - own) : S(0);
        put(a.d_logits.as<S>()[n * heads + h], d_logit, a.accumulate_logits);
      }
      if (!averages) { continue; }
      d_gamma += d * (own - a.previous.as<S>()[n]);
      if (a.d_previous.defined()) {
        S& to = a.d_previous.as<S>()[n];
        to = (a.accumulate_previous ? to : S(0)) + (S(1) - gamma) * d;
      }
    }
    if (a.d_eda_logit.defined()) { *a.d_eda_logit.as<S>() += d_gamma * gamma * (S(1) - gamma); }
  });
}

void run(Stream&, const SelectTokens& a) {
  dispatch_real(a.score.defined() ? a.score.dtype : DType::f32, [&]<class S>(S) {
    const S tau =
        a.threshold.defined() ? static_cast<S>(a.range) * sigmoid(*a.threshold.as<S>()) : static_cast<S>(a.tau);
    const S* score = a.score.as<S>();
    const int32_t *forced = a.forced.as<int32_t>(), *held = a.held.as<int32_t>(),
                  *doc_start = a.doc_start.as<int32_t>();
    const int64_t length = a.slot.size(1);
    int32_t first = 0, next = 0;
    for (int64_t n = 0; n < a.slot.numel(); ++n) {
      const int64_t row = n / length, t = n % length;
      const bool is_selected = forced != nullptr                     ? forced[n] != 0
                               : a.selecting == Selecting::threshold ? score[n] >= tau
                                                                     : a.selecting == Selecting::all;
      if (t == 0) {
        a.selected.as<int32_t>()[row] = 0;
        if (held != nullptr) {
          first = held[2 * row];
          next = held[2 * row + 1];
        }
      }
      first = doc_start[n] == t ? next : first;
      a.slot.as<int32_t>()[n] = is_selected ? next++ : -1;
      a.lo.as<int32_t>()[n] = first;
      a.hi.as<int32_t>()[n] = next;
      a.selected.as<int32_t>()[row] += is_selected ? 1 : 0;
    }
  });
}

void run(Stream&, const CountSelected& a) {
  const int32_t* selected = a.selected.as<int32_t>();
  a.counter.as<int64_t>()[0] += std::accumulate(selected, selected + a.selected.numel(), int64_t{0});
  a.counter.as<int64_t>()[1] += a.tokens;
}

void run(Stream&, const ThresholdGradient& a) {
  const int64_t* counters = a.counters.as<int64_t>();
  const int64_t layers = a.counters.size(0);
  double sum = 0;
  for (int64_t i = 0; i < layers; ++i) {
    sum += static_cast<double>(counters[2 * i]) / static_cast<double>(counters[2 * i + 1]);
  }
  const double gradient = std::clamp(-a.gain * (sum / static_cast<double>(layers) - a.target), -a.clip, a.clip);
  dispatch_real(a.gradient.dtype, [&]<class S>(S) { a.gradient.as<S>()[0] = static_cast<S>(gradient); });
}

void run(Stream&, const PackTokens& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t length = a.x.size(1), channels = a.x.size(2);
    const int64_t slots = a.list.size(0) > 1 ? a.list.size(1) : 0;  // from row to row
    parallel_each(a.slot.numel(), kTokens, [&](int64_t n) {
      const int32_t slot = a.slot.as<int32_t>()[n];
      if (slot >= 0) {
        put_row(channels, a.factor.defined() ? a.factor.as<S>()[n] : S(1), a.x.as<S>() + n * channels,
                a.list.as<S>() + (n / length * slots + slot) * channels, false);
      }
    });
  });
}

void run(Stream&, const PackTokensBackward& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t channels = a.x.size(2);
    parallel_each(a.slot.numel(), kTokens, [&](int64_t n) {
      const int32_t slot = a.slot.as<int32_t>()[n];
      const S* d = a.d_list.as<S>() + slot * channels;
      if (a.d_x.defined()) {
        S* to = a.d_x.as<S>() + n * channels;
        if (slot >= 0) {
          put_row(channels, a.factor.defined() ? a.factor.as<S>()[n] : S(1), d, to, a.accumulate_x);
        } else if (!a.accumulate_x) {
          std::fill_n(to, channels, S(0));
        }
      }
      if (a.d_factor.defined()) {
        S& to = a.d_factor.as<S>()[n];
        to = (a.accumulate_factor ? to : S(0)) + (slot >= 0 ? dot_row(channels, d, a.x.as<S>() + n * channels) : S(0));
      }
    });
  });
}

}  // namespace hebb::cpu
