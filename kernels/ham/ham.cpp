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

template <class F> void each_token(int64_t tokens, F&& f) {
  parallel_each(tokens, kTokens, [&](int64_t n) { f(n); });
}

template <class S> S product(int64_t n, const S* a, const S* b) {
  Vec<S> total(S(0));
  vector_loop<S>(n, [&](int64_t i, auto lanes) { total = fma(load(a + i, lanes), load(b + i, lanes), total); });
  return sum(total);
}

/// to = factor from, or += it.
template <class S> void put_row(int64_t n, S factor, const S* from, S* to, bool accumulate) {
  const Vec<S> f(factor);
  vector_loop<S>(n, [&](int64_t i, auto lanes) {
    const Vec<S> x = f * load(from + i, lanes);
    store(to + i, accumulate ? load(to + i, lanes) + x : x, lanes);
  });
}

/// The head whose score counts: the first of equal ones.
template <class S> int64_t winning_head(const S* scores, int64_t heads, bool takes_max) {
  return (takes_max ? std::max_element(scores, scores + heads) : std::min_element(scores, scores + heads)) - scores;
}

template <class S> void score(const PredictionScore& a) {
  const int64_t heads = a.p.size(1), dv = a.p.size(2);
  const S *p = a.p.as<S>(), *v = a.v.as<S>();
  S* score = a.score.as<S>();
  each_token(a.p.size(0), [&](int64_t n) {
    for (int64_t h = 0; h < heads; ++h) {
      const S *ph = p + (n * heads + h) * dv, *vh = v + (n * heads + h) * dv;
      const S lengths = std::sqrt(product(dv, ph, ph)) * std::sqrt(product(dv, vh, vh));
      const S e = S(1) - product(dv, ph, vh) / (lengths + S(1e-6));
      const bool wins = h == 0 || (a.takes_max ? e > score[n] : e < score[n]);
      score[n] = wins ? e : score[n];
    }
  });
}

template <class S> void join(const RouterInput& a) {
  const int64_t heads = a.p.size(1), dv = a.p.size(2), d = a.x.size(1), width = 2 * dv + d;
  each_token(a.p.size(0), [&](int64_t n) {
    for (int64_t h = 0; h < heads; ++h) {
      S* y = a.y.as<S>() + (n * heads + h) * width;
      for (const Tensor* part : {&a.p, &a.v}) {
        const S* from = part->as<S>() + (n * heads + h) * dv;
        put_row(dv, S(1) / std::sqrt(product(dv, from, from) + S(1e-6)), from, y, false);
        y += dv;
      }
      std::copy_n(a.x.as<S>() + n * d, d, y);
    }
  });
}

template <class S> void join_backward(const RouterInputBackward& a) {
  const int64_t heads = a.d_y.size(1), width = a.d_y.size(2), d = a.d_x.size(1);
  each_token(a.d_x.size(0), [&](int64_t n) {
    for (int64_t h = 0; h < heads; ++h) {
      const S* from = a.d_y.as<S>() + (n * heads + h) * width + width - d;
      put_row(d, S(1), from, a.d_x.as<S>() + n * d, a.accumulate || h > 0);
    }
  });
}

template <class S> void gelu(const Gelu& a) {
  parallel_each(a.x.numel(), kElements,
                [&](int64_t i) { a.y.as<S>()[i] = a.x.as<S>()[i] * normal_cdf(a.x.as<S>()[i]); });
}

template <class S> void gelu_backward(const GeluBackward& a) {
  parallel_each(a.x.numel(), kElements, [&](int64_t i) {
    const S x = a.x.as<S>()[i];
    const S d = a.d_y.as<S>()[i] * (normal_cdf(x) + x * kNormalPeak<S> * std::exp(S(-0.5) * x * x));
    S& to = a.d_x.as<S>()[i];
    to = a.accumulate ? to + d : d;
  });
}

template <class S> void route(const RouterScore& a) {
  const int64_t heads = a.logits.numel() / a.score.numel();
  const S gamma = a.previous.defined() ? sigmoid(*a.eda_logit.as<S>()) : S(1);
  each_token(a.score.numel(), [&](int64_t n) {
    const S* logits = a.logits.as<S>() + n * heads;
    const int64_t head = winning_head(logits, heads, a.takes_max);  // sigmoid is monotonic
    const S own = sigmoid(logits[head]);
    a.winner.as<int32_t>()[n] = static_cast<int32_t>(head);
    a.own.as<S>()[n] = own;
    a.score.as<S>()[n] = a.previous.defined() ? gamma * own + (S(1) - gamma) * a.previous.as<S>()[n] : own;
  });
}

template <class S> void route_backward(const RouterScoreBackward& a) {
  const int64_t tokens = a.d_score.numel(), heads = a.d_logits.defined() ? a.d_logits.numel() / tokens : 0;
  const bool averages = a.previous.defined();
  const S gamma = averages ? sigmoid(*a.eda_logit.as<S>()) : S(1);
  S d_gamma(0);
  for (int64_t n = 0; n < tokens; ++n) {
    const S d = a.d_score.as<S>()[n], own = a.own.as<S>()[n];
    for (int64_t h = 0; h < heads; ++h) {
      const S d_logit = h == a.winner.as<int32_t>()[n] ? d * gamma * own * (S(1) - own) : S(0);
      S& to = a.d_logits.as<S>()[n * heads + h];
      to = a.accumulate_logits ? to + d_logit : d_logit;
    }
    if (!averages) { continue; }
    d_gamma += d * (own - a.previous.as<S>()[n]);
    if (a.d_previous.defined()) {
      S& to = a.d_previous.as<S>()[n];
      to = (a.accumulate_previous ? to : S(0)) + (S(1) - gamma) * d;
    }
  }
  if (a.d_eda_logit.defined()) { *a.d_eda_logit.as<S>() += d_gamma * gamma * (S(1) - gamma); }
}

/// Calls f(token, whether it is selected) in order.
template <class S, class F> void each_decision(const SelectTokens& a, F&& f) {
  const S tau = a.threshold.defined() ? static_cast<S>(a.range) * sigmoid(*a.threshold.as<S>()) : static_cast<S>(a.tau);
  const int32_t* forced = a.forced.as<int32_t>();
  const S* score = a.score.as<S>();
  for (int64_t n = 0; n < a.slot.numel(); ++n) {
    f(n, forced != nullptr                     ? forced[n] != 0
         : a.selecting == Selecting::threshold ? score[n] >= tau
                                               : a.selecting == Selecting::all);
  }
}

template <class S> void select_tokens(const SelectTokens& a) {
  const int64_t length = a.slot.size(1);
  const int32_t *held = a.held.as<int32_t>(), *doc_start = a.doc_start.as<int32_t>();
  int32_t first = 0, next = 0;
  each_decision<S>(a, [&](int64_t n, bool is_selected) {
    const int64_t row = n / length, t = n % length;
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
  });
}

template <class S> void pack(const PackTokens& a) {
  const int64_t length = a.x.size(1), channels = a.x.size(2);
  const int64_t slots = a.list.size(0) > 1 ? a.list.size(1) : 0;  // from row to row
  each_token(a.slot.numel(), [&](int64_t n) {
    const int32_t slot = a.slot.as<int32_t>()[n];
    if (slot >= 0) {
      put_row(channels, a.factor.defined() ? a.factor.as<S>()[n] : S(1), a.x.as<S>() + n * channels,
              a.list.as<S>() + (n / length * slots + slot) * channels, false);
    }
  });
}

template <class S> void unpack(const PackTokensBackward& a) {
  const int64_t channels = a.x.size(2);
  each_token(a.slot.numel(), [&](int64_t n) {
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
      to = (a.accumulate_factor ? to : S(0)) + (slot >= 0 ? product(channels, d, a.x.as<S>() + n * channels) : S(0));
    }
  });
}

}  // namespace

void run(Stream&, const PredictionScore& args) {
  dispatch_real(args.p.dtype, [&]<class S>(S) { score<S>(args); });
}
void run(Stream&, const RouterInput& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { join<S>(args); });
}
void run(Stream&, const RouterInputBackward& args) {
  dispatch_real(args.d_y.dtype, [&]<class S>(S) { join_backward<S>(args); });
}
void run(Stream&, const Gelu& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { gelu<S>(args); });
}
void run(Stream&, const GeluBackward& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { gelu_backward<S>(args); });
}
void run(Stream&, const RouterScore& args) {
  dispatch_real(args.logits.dtype, [&]<class S>(S) { route<S>(args); });
}
void run(Stream&, const RouterScoreBackward& args) {
  dispatch_real(args.d_score.dtype, [&]<class S>(S) { route_backward<S>(args); });
}
void run(Stream&, const SelectTokens& args) {
  dispatch_real(args.score.defined() ? args.score.dtype : DType::f32, [&]<class S>(S) { select_tokens<S>(args); });
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
void run(Stream&, const PackTokens& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { pack<S>(args); });
}
void run(Stream&, const PackTokensBackward& args) {
  dispatch_real(args.x.dtype, [&]<class S>(S) { unpack<S>(args); });
}

}  // namespace hebb::cpu
